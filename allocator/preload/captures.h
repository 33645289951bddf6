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
/// While it is held no capture begins. (One may be under way.)
std::unique_lock<std::mutex> captures_lock();
/// The graph that the stream's work goes into instead of running; null where it runs.
CUgraph captured_into(CUstream stream);
/// For calls that the driver calls potentially unsafe, allocations among them, and that Firn
/// answers: what the driver says of one in this thread now. An error invalidates the capture.
CUresult unsafe_call();
/// Nothing may wait for the device while a capture is under way: the block that begins there ends
/// after it. False: none is under way, and nothing was done.
bool free_after_captures(CUdeviceptr address, CUresult& result);
/// The stream is about to be destroyed: its capture ends with it.
void capture_ends_with(CUstream stream);

}  // namespace firn::preload
