// Who holds the engine for an address or for a context. Owns the process's runtime where no other
// front end of Firn's has one. Lookups are lock-free.
#pragma once

#include "allocator/runtime/runtime.h"
#include "firn/cuda_abi.h"

namespace firn::preload {

/// The engine that memory for the calling thread's current context comes from; opened at first use.
/// Null: the driver serves (no context or one that is not the device's primary one, another front
/// end manages this process's memory, Firn could not start: said once on stderr).
Engine* engine_here();

/// The engine whose arena holds the address, ours or another front end's; null: not Firn's.
Engine* engine_around(CUdeviceptr address);

/// Memory is handed out by this library's handlers; false: by another front end.
bool serving();
/// What this thread enqueues just now was told to the engine by another front end (PyTorch's
/// operators), or nothing can leave the device yet.
bool told_already();
/// How this and coming work is seen: always, unless some of it is told_already().
Seen seen_as();

/// The calling thread is about to enqueue on `stream`: which may be another stream than the one that
/// its front end holds blocks for.
void note_enqueued(CUstream stream);

/// The runtime in charge, ours or another front end's; null before there is one.
Runtime* runtime_here();
/// In a child of fork.
void forget_runtime();
/// Exit has begun: from here the driver is called as if Firn were not there.
void step_aside();
/// As allocator/runtime/meeting.h has it: what other front ends of this process reach through the stand-in.
Runtime* meet(Runtime* offered, const char* build);
/// What the environment says, wherever a front end keeps its words.
Result<Config> configuration();

/// The driver's word for an engine's error.
CUresult result_of(const Error& error);

}  // namespace firn::preload
