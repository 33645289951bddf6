// Streams, and nodes of graphs, that wait for values in memory and write them.
#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include "bodies.h"
#include "gpu.h"
#include "graph.h"

namespace firn::software {

namespace {
// CUstreamBatchMemOpType.
enum : unsigned { wait_32 = 1, write_32 = 2, flush = 3, wait_64 = 4, write_64 = 5, barrier = 6 };
constexpr unsigned operations_most = 256;  // the documented limit

size_t bytes_of(unsigned operation) {
  switch (operation) {
    case wait_32:
    case write_32: return 4;
    case wait_64:
    case write_64: return 8;
    default: return 0;
  }
}

template <class T>
bool holds(const CUstreamBatchMemOpParams& wait) {
  const T now = __atomic_load_n(reinterpret_cast<const T*>(wait.address), __ATOMIC_ACQUIRE);
  const T value = static_cast<T>(wait.value);
  switch (wait.flags & 3) {
    case 0: return static_cast<std::make_signed_t<T>>(now - value) >= 0;
    case 1: return now == value;
    case 2: return (now & value) != 0;
    default: return static_cast<T>(~(now | value)) != 0;
  }
}

template <class T>
void write(const CUstreamBatchMemOpParams& is) {
  __atomic_store_n(reinterpret_cast<T*>(is.address), static_cast<T>(is.value), __ATOMIC_RELEASE);
}

/// False: it still waits.
bool done(const CUstreamBatchMemOpParams& operation) {
  switch (operation.operation) {
    case wait_32: return holds<uint32_t>(operation);
    case wait_64: return holds<uint64_t>(operation);
    case write_32: write<uint32_t>(operation); return true;
    case write_64: write<uint64_t>(operation); return true;
    default: return true;  // every write is seen at once, in order
  }
}

CUresult submit_operations(const char* entry, CUstream handle,
                           const CUstreamBatchMemOpParams* operations, unsigned count) {
  return enter(entry, Need::initialised, [&](Gate& gate) -> CUresult {
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(gate, handle, &stream)) return result;
    Body body{.entry = gate.entry()};
    if (CUresult result = memory_operations_body(operations, count, &body)) return result;
    return submit(gate, stream, std::move(body));
  });
}

CUresult submit_one(const char* entry, CUstream stream, unsigned operation, CUdeviceptr address,
                    uint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams one{};
  one.operation = operation;
  one.address = address;
  one.value = value;
  one.flags = flags;
  return submit_operations(entry, stream, &one, 1);
}
}  // namespace

CUresult memory_operations_body(const CUstreamBatchMemOpParams* operations, unsigned count,
                                Body* body) {
  if (!operations || count == 0 || count > operations_most) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    const unsigned operation = operations[i].operation;
    if (operation == flush || operation == barrier) continue;
    const size_t bytes = bytes_of(operation);
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    int device = -1;
    const MemoryKind kind = gpu().space.kind_of(operations[i].address, bytes, &device);
    if (operations[i].address % bytes || (kind != MemoryKind::device && kind != MemoryKind::pinned))
      return CUDA_ERROR_INVALID_VALUE;
    body->ranges.push_back({operations[i].address, bytes});
  }
  struct Progress {
    std::vector<CUstreamBatchMemOpParams> operations;
    size_t next = 0;
  };
  auto progress = std::make_shared<Progress>();
  progress->operations.assign(operations, operations + count);
  body->type = node_batch_mem_op;
  // (Launches of a graph do not overlap: the next one begins anew.)
  body->ready = [progress] {
    while (progress->next < progress->operations.size()) {
      if (!done(progress->operations[progress->next])) return false;
      ++progress->next;
    }
    return true;
  };
  body->settle = [progress] { progress->next = 0; };
  return CUDA_SUCCESS;
}

FIRN_GPU_ENTRY_PTSZ(cuStreamWaitValue32_v2, (CUstream stream, CUdeviceptr address, uint32_t value,
                                             unsigned flags), (stream, address, value, flags)) {
  return submit_one("cuStreamWaitValue32", stream, wait_32, address, value, flags);
}
FIRN_GPU_ENTRY_PTSZ(cuStreamWaitValue64_v2, (CUstream stream, CUdeviceptr address, uint64_t value,
                                             unsigned flags), (stream, address, value, flags)) {
  return submit_one("cuStreamWaitValue64", stream, wait_64, address, value, flags);
}
// The barrier that a write may leave out is always there.
FIRN_GPU_ENTRY_PTSZ(cuStreamWriteValue32_v2, (CUstream stream, CUdeviceptr address, uint32_t value,
                                              unsigned flags), (stream, address, value, flags)) {
  return submit_one("cuStreamWriteValue32", stream, write_32, address, value, flags);
}
FIRN_GPU_ENTRY_PTSZ(cuStreamWriteValue64_v2, (CUstream stream, CUdeviceptr address, uint64_t value,
                                              unsigned flags), (stream, address, value, flags)) {
  return submit_one("cuStreamWriteValue64", stream, write_64, address, value, flags);
}
FIRN_GPU_ENTRY_PTSZ(cuStreamBatchMemOp_v2, (CUstream stream, unsigned count,
                                            CUstreamBatchMemOpParams* operations, unsigned flags),
                    (stream, count, operations, flags)) {
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  return submit_operations("cuStreamBatchMemOp", stream, operations, count);
}

}  // namespace firn::software
