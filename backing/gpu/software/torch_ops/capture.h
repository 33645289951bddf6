// Operators under stream capture. A captured operator is run at once, for its results' shapes and
// for the values that later operators of the capture read, and is recorded as a kernel that runs it
// again at each replay. Its writes meanwhile are undone when the capture ends, for a capture must
// change nothing.
//
// Owns the bytes to be restored, by capture. Locks: its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace firn::torch_ops {

/// Keeps `count` bytes at `bytes`, which `capture` is about to overwrite, unless it has them.
void keep_until_end(uint64_t capture, void* bytes, size_t count);

/// Has the software CUDA runtime say when a capture ends.
void watch_captures();

}  // namespace firn::torch_ops
