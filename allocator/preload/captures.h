// Captures of streams into graphs that are under way, and what the driver forbids meanwhile.
//
// Owns a list of them, and the frees that wait for the last one's end. Lock: one;
// captures_under_way() is lock-free.
#pragma once

#include <mutex>

#include "firn/cuda_types.h"

namespace firn::preload {

/// Is any stream being captured?
bool captures_under_way();
/// No capture begins while it is held; one may be under way.
std::unique_lock<std::mutex> captures_lock();
/// The graph that the stream's work goes into instead of running; null where it runs.
CUgraph captured_into(CUstream stream);
/// For calls that CUDA names potentially unsafe, allocations among them, and that Firn answers
/// itself: the driver's present answer to such a call in this thread. An error invalidates the
/// capture.
CUresult unsafe_call();
/// While a capture is under way nothing may wait for the device: the block at `address` is freed
/// after it. False when none is under way: the block is left as it is.
bool free_after_captures(CUdeviceptr address, CUresult& result);
/// The stream is about to be destroyed: its capture ends with it.
void capture_ends_with(CUstream stream);

}  // namespace firn::preload
