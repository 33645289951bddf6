// Who holds the engine for an address or for a context. Owns the process's runtime where no other
// front end of Firn's has one. Lookups are lock-free.
#pragma once

#include "allocator/runtime.h"
#include "firn/cuda_abi.h"

namespace firn::preload {

/// The engine that memory for the calling thread's current context comes from; opened at first use.
/// Null: the driver serves (no context or one that is not the device's primary one, another front
/// end manages this process's memory, Firn could not start: said once on stderr).
Engine* engine_here();

/// The engine whose arena holds the address, ours or another front end's; null: not Firn's.
Engine* engine_around(CUdeviceptr address);

/// What is in charge, or null before the first allocation.
Runtime* runtime_here();

/// The driver's word for an engine's error.
CUresult result_of(const Error& error);

}  // namespace firn::preload
