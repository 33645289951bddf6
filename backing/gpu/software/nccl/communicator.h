// A communicator, as one rank has it: made from a unique id, or out of another communicator.
//
// Owns: the rank's side of the shared memory, an event behind its last kernel, the list of work in
// host memory that its kernels read. Locks: one thread at a time uses a communicator, as NCCL wants
// it; ncclCommAbort and ncclCommGetAsyncError may come from another.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backing/gpu/software/nccl/collectives.h"
#include "backing/gpu/software/nccl/driver.h"
#include "backing/gpu/software/nccl/shared_memory.h"
#include "backing/gpu/software/nccl/work_list.h"

struct ncclComm {
  firn::nccl::Signals signals;
  std::unique_ptr<firn::nccl::SharedMemory> shared;
  CUcontext context = nullptr;
  CUdevice device = 0;

  // The host's side.
  CUevent behind = nullptr;    // the last kernel
  CUstream last_stream = nullptr;
  bool launched = false;       // `behind` and `last_stream` are set
  firn::nccl::WorkList list;
  struct Factor {
    bool used;
    ncclDataType_t type;
    char value[8];
    const char* at;            // on the device; null: `value`
  };
  std::vector<Factor> factors; // of reductions made by ncclRedOpCreatePreMulSum
  std::vector<std::unique_ptr<char[]>> captured;  // work of kernels in graphs
  uint64_t shrinks = 0;

  // The kernels'.
  std::mutex one_kernel;       // graphs may be replayed beside a stream
  std::atomic<uint64_t> enqueued{0}, ended{0}, moved_bytes{0}, moving_ns{0};
};

namespace firn::nccl {

/// The calling thread's current device: `context` is its primary one, unless another is current.
ncclResult_t current_device(CUcontext* context, CUdevice* device);

/// Joins, and waits until the other ranks have.
ncclResult_t make_communicator(ncclComm_t* made, const Id& id, int ranks, int rank,
                               CUcontext context, CUdevice device);
/// The calling rank's part of dividing `parent` by colours; *made is null without one.
ncclResult_t split(ncclComm_t parent, int color, int key, ncclComm_t* made);
/// A communicator of the ranks that are not in `excluded` (which do not call this).
ncclResult_t shrink(ncclComm_t parent, const std::vector<int>& excluded, ncclComm_t* made);
/// Waits for its kernels (aborts them, with `abort`), and ends it.
ncclResult_t end_communicator(ncclComm_t comm, bool abort);
/// Waits until its kernels have ended, or the device has failed.
ncclResult_t wait_for_kernels(ncclComm_t comm);

}  // namespace firn::nccl
