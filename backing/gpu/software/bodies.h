// The work of kernels, copies and fills, written once for streams and for nodes of graphs.
#pragma once

#include <array>

#include "firn/saturating.h"
#include "gpu.h"

namespace firn::software {

/// A copy: `slices` of `rows` rows of `bytes`; one row when it is linear.
struct Rows {
  uint64_t to = 0, from = 0;
  size_t bytes = 0, rows = 1, to_pitch = 0, from_pitch = 0;
  size_t slices = 1, to_slice = 0, from_slice = 0;
  // The device whose access to mapped memory counts, of copies between contexts; else the stream's.
  int to_reach = -1, from_reach = -1;
  size_t total() const { return bytes * rows * slices; }
  size_t to_span() const { return strided_span(bytes, rows, to_pitch, slices, to_slice); }
  size_t from_span() const { return strided_span(bytes, rows, from_pitch, slices, from_slice); }
};
enum class Side : uint8_t { any, device };  // device: pinned host memory will do, pageable will not

/// Reads cuMemcpy3D's structure; CUDA_ERROR_NOT_SUPPORTED for arrays.
CUresult read_rows(const CUDA_MEMCPY3D* what, Rows* rows, Side* to_side, Side* from_side);
void move_rows(const Rows& rows);

/// For work on `device`, unless the addresses say more. The copy is not empty.
CUresult copy_body(const Rows& rows, Side to_side, Side from_side, int device, Body* body,
                   MemoryKind* to, MemoryKind* from);
/// `unit_bytes` of `value`, repeated. The fill is not empty.
CUresult fill_body(uint64_t to, size_t pitch, unsigned value, size_t unit_bytes, size_t width,
                   size_t height, int device, Body* body);
/// Waits for values and writes of them, in their order (cuStreamBatchMemOp).
CUresult memory_operations_body(const CUstreamBatchMemOpParams* operations, unsigned count,
                                Body* body);
/// Checked against the calling thread's current context.
CUresult kernel_body(Gate& gate, CUfunction handle, std::array<unsigned, 3> grid,
                     std::array<unsigned, 3> block, void** parameters, void** extra, Body* body);

}  // namespace firn::software
