// Finds the engine for an address or a context. Owns the process's runtime where no other front end
// of Firn's has one. Lookups are lock-free.
#pragma once

#include "allocator/runtime/runtime.h"
#include "firn/cuda_abi.h"

namespace firn::preload {

/// The engine that memory for the calling thread's current context comes from; opened at first use.
/// Null: the driver serves (no context or one that is not the device's primary one, another front
/// end manages this process's memory, Firn could not start: said once on stderr).
Engine* engine_here();

/// This library's handlers hand out the memory; false: another front end does.
bool serving();
/// Another front end (PyTorch's operators) has announced to the engine what this thread enqueues
/// now, or nothing can leave the device yet.
bool launch_covered();
/// Seen::always, unless another front end announces some of the work (launch_covered()).
Seen seen_as();

/// The calling thread is about to enqueue on `stream`, perhaps another one than its front end holds
/// blocks for.
void note_enqueued(CUstream stream);

/// The runtime in charge, ours or another front end's; null before there is one.
Runtime* runtime_here();
/// In a child of fork.
void forget_runtime();
/// Exit has begun: from here the driver is called as if Firn were not there.
void step_aside();
/// See allocator/runtime/meeting.h. Other front ends of this process reach it through the stand-in.
Runtime* meet(Runtime* offered, const char* build);
/// The configuration in the environment, whichever variable holds it.
Result<Config> configuration();

/// The driver's error code for an engine's error.
CUresult result_of(const Error& error);

}  // namespace firn::preload
