// The list in host memory through which more work than a kernel's parameters hold reaches it: a
// ring, in memory that the driver makes as the real NCCL has it make (cuMemCreate on a host node;
// pinned memory where that is refused, or with NCCL_CUMEM_HOST_ENABLE=0).
//
// Owns: that memory, from its first use to close(). Locks: none; the communicator's thread writes,
// its kernels read and say how far they have read.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "backing/gpu/software/nccl/collectives.h"

namespace firn::nccl {

class WorkList {
 public:
  static constexpr size_t bytes = 1 << 20;
  static constexpr size_t capacity = bytes / sizeof(Work);

  /// Writes the pieces one after the other, waiting while kernels have yet to read what is there.
  /// The communicator's context is current. `taken`: elements, with those left empty at the end.
  ncclResult_t write(std::span<const Work> works, const Work** at, uint64_t* taken);
  /// In a kernel: it has read what took so many elements.
  void has_read(uint64_t taken) {
    read_.fetch_add(taken, std::memory_order_acq_rel);
    read_.notify_all();
  }
  void close();

 private:
  ncclResult_t open();
  bool open_frames();

  Work* first_ = nullptr;
  bool frames_ = false;
  uint64_t written_ = 0;               // elements, ever
  std::atomic<uint64_t> read_{0};
};

}  // namespace firn::nccl
