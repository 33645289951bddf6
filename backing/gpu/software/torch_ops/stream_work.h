// Host work in stream order: how an operator becomes a kernel of the software GPU. Every piece of
// work is launched with cuLaunchKernel on a kernel made by firnGpuKernelCreate; its parameters are
// the device addresses it uses, so that an observer of launches sees them.
//
// Owns: the kernels made, the work queued. Locks: none to be held; callers need the stream's
// context current.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace firn::torch_ops {

/// Finds the software GPU's entries in the libcuda.so.1 that is loaded. Throws std::runtime_error
/// where there is none, or only a real one.
void open_software_gpu();

using Stream = void*;  // CUstream
using Addresses = std::vector<uint64_t>;

/// Launches a kernel `name` on `stream` and, when the stream reaches it, runs `work` on the calling
/// thread, so that its thread-local state and its exceptions are the caller's; the stream goes on
/// when `work` has ended. Device memory may be used by `work` alone, in between.
void hold_stream(Stream stream, const char* name, const Addresses& addresses,
                 const std::function<void()>& work);

/// Launches a kernel `name` on `stream` that runs `work` on one of the software GPU's threads when
/// the stream reaches it. Returns at once. `work` must not throw; it is destroyed when it has run,
/// or never when it was captured into a graph, which may run it again.
void enqueue(Stream stream, const char* name, const Addresses& addresses,
             std::function<void()> work);

/// The number of the capture that `stream` belongs to; 0 for none.
uint64_t capture_of(Stream stream);

}  // namespace firn::torch_ops
