// NCCL's entries: communicators, groups, reductions, memory. Owns nothing. Locks: none.
#include <cstring>
#include <string>
#include <vector>

#include "backing/gpu/software/nccl/group.h"

#define FIRN_NCCL_ENTRY extern "C" __attribute__((visibility("default")))

using namespace firn::nccl;

namespace {

/// As ncclCommInitRank, with the current device.
ncclResult_t init_rank(ncclComm_t* comm, int ranks, const ncclUniqueId& words, int rank) {
  if (comm == nullptr || ranks < 1 || rank < 0 || rank >= ranks)
    return fail(ncclInvalidArgument, "rank %d of %d", rank, ranks);
  CUcontext context = nullptr;
  CUdevice device = 0;
  FIRN_NCCL_TRY(current_device(&context, &device));
  Id id;
  std::memcpy(&id, &words, sizeof id);
  *comm = nullptr;
  return enqueue_making([=] { return make_communicator(comm, id, ranks, rank, context, device); });
}

ncclResult_t there(ncclComm_t comm) {
  return comm != nullptr ? ncclSuccess : fail(ncclInvalidArgument, "no communicator");
}

}  // namespace

FIRN_NCCL_ENTRY ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) return fail(ncclInvalidArgument, "ncclGetVersion without a place");
  *version = firn::nccl::version;
  return ncclSuccess;
}

FIRN_NCCL_ENTRY ncclResult_t ncclGetUniqueId(ncclUniqueId* words) {
  if (words == nullptr) return fail(ncclInvalidArgument, "ncclGetUniqueId without a place");
  Id id{};
  FIRN_NCCL_TRY(make_id(&id));
  std::memset(words, 0, sizeof *words);
  std::memcpy(words, &id, sizeof id);
  return ncclSuccess;
}

FIRN_NCCL_ENTRY ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id,
                                              int rank) {
  return init_rank(comm, ranks, id, rank);
}

// (The configuration's settings, channels and such, have no counterpart here; a communicator that
// need not block is ready at once, too.)
FIRN_NCCL_ENTRY ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id,
                                                    int rank, void*) {
  return init_rank(comm, ranks, id, rank);
}

FIRN_NCCL_ENTRY ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank,
                                                      int ids, ncclUniqueId* words, void*) {
  if (words == nullptr || ids < 1) return fail(ncclInvalidArgument, "no unique id");
  return init_rank(comm, ranks, words[0], rank);
}

FIRN_NCCL_ENTRY ncclResult_t ncclCommInitAll(ncclComm_t* comms, int ranks, const int* devices) {
  if (comms == nullptr || ranks < 1) return fail(ncclInvalidArgument, "%d devices", ranks);
  if (!driver().complete) return ncclUnhandledCudaError;
  Id id{};
  FIRN_NCCL_TRY(make_id(&id));
  group_start();
  ncclResult_t result = ncclSuccess;
  for (int rank = 0; rank < ranks && result == ncclSuccess; ++rank) {
    const CUdevice device = devices != nullptr ? devices[rank] : rank;
    CUcontext context = nullptr;
    result = checked("cuDevicePrimaryCtxRetain",
                     driver().cuDevicePrimaryCtxRetain(&context, device));
    comms[rank] = nullptr;
    if (result == ncclSuccess)
      result = enqueue_making([=] {
        return make_communicator(&comms[rank], id, ranks, rank, context, device);
      });
  }
  if (result == ncclSuccess) return group_end();
  float none = 0;
  (void)group_simulate_end(&none);
  return result;
}

FIRN_NCCL_ENTRY ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                                           void*) {
  FIRN_NCCL_TRY(there(comm));
  if (made == nullptr || (color < 0 && color != no_color))
    return fail(ncclInvalidArgument, "ncclCommSplit by colour %d", color);
  return enqueue_making([=] { return split(comm, color, key, made); });
}

FIRN_NCCL_ENTRY ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int count,
                                            ncclComm_t* made, void*, int flags) {
  FIRN_NCCL_TRY(there(comm));
  if (made == nullptr || excluded == nullptr || count < 1)
    return fail(ncclInvalidArgument, "ncclCommShrink without ranks to leave out");
  if (flags & shrink_abort) {
    comm->signals.abort.store(true, std::memory_order_release);
    FIRN_NCCL_TRY(wait_for_kernels(comm));
    comm->signals.abort.store(false, std::memory_order_release);
  }
  const std::vector<int> ranks(excluded, excluded + count);
  return enqueue_making([=] { return shrink(comm, ranks, made); });
}

FIRN_NCCL_ENTRY ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  FIRN_NCCL_TRY(there(comm));
  return wait_for_kernels(comm);
}

FIRN_NCCL_ENTRY ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  return end_communicator(comm, false);
}

FIRN_NCCL_ENTRY ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  return end_communicator(comm, true);
}

FIRN_NCCL_ENTRY ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  FIRN_NCCL_TRY(there(comm));
  if (error == nullptr) return fail(ncclInvalidArgument, "ncclCommGetAsyncError without a place");
  *error = static_cast<ncclResult_t>(comm->signals.error.load(std::memory_order_acquire));
  return ncclSuccess;
}

FIRN_NCCL_ENTRY const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
  }
  return "unknown result code";
}

FIRN_NCCL_ENTRY const char* ncclGetLastError(ncclComm_t comm) {
  if (comm != nullptr && comm->signals.error.load(std::memory_order_acquire) != ncclSuccess)
    return comm->signals.words.c_str();
  return last_error();
}

FIRN_NCCL_ENTRY ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  FIRN_NCCL_TRY(there(comm));
  *count = comm->shared->ranks();
  return ncclSuccess;
}

FIRN_NCCL_ENTRY ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  FIRN_NCCL_TRY(there(comm));
  *device = comm->device;
  return ncclSuccess;
}

FIRN_NCCL_ENTRY ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  FIRN_NCCL_TRY(there(comm));
  *rank = comm->shared->rank();
  return ncclSuccess;
}

FIRN_NCCL_ENTRY ncclResult_t ncclGroupStart() {
  group_start();
  return ncclSuccess;
}

FIRN_NCCL_ENTRY ncclResult_t ncclGroupEnd() { return group_end(); }

FIRN_NCCL_ENTRY ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* told) {
  if (told != nullptr && told->magic != sim_magic)
    return fail(ncclInvalidArgument, "ncclSimInfo_t is not initialised");
  float microseconds = 0;
  FIRN_NCCL_TRY(group_simulate_end(&microseconds));
  if (told != nullptr) told->estimatedTime = microseconds;
  return ncclSuccess;
}

FIRN_NCCL_ENTRY ncclResult_t ncclMemAlloc(void** memory, size_t bytes) {
  if (memory == nullptr || bytes == 0) return fail(ncclInvalidArgument, "ncclMemAlloc of nothing");
  if (!driver().complete) return ncclUnhandledCudaError;
  CUdeviceptr at = 0;
  FIRN_NCCL_TRY(checked("cuMemAlloc", driver().cuMemAlloc(&at, bytes)));
  *memory = reinterpret_cast<void*>(at);
  return ncclSuccess;
}

FIRN_NCCL_ENTRY ncclResult_t ncclMemFree(void* memory) {
  if (memory == nullptr) return ncclSuccess;
  return checked("cuMemFree", driver().cuMemFree(reinterpret_cast<CUdeviceptr>(memory)));
}

// Buffers need no registration here: returns a handle that stands for none.
FIRN_NCCL_ENTRY ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buffer, size_t,
                                              void** handle) {
  FIRN_NCCL_TRY(there(comm));
  *handle = buffer;
  return ncclSuccess;
}

FIRN_NCCL_ENTRY ncclResult_t ncclCommDeregister(const ncclComm_t comm, void*) {
  return there(comm);
}

namespace {
ncclResult_t refused(const char* entry) {
  return fail(ncclInvalidUsage, "%s: the software NCCL lacks windows and device communicators",
              entry);
}
}  // namespace

FIRN_NCCL_ENTRY ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, size_t, void**, int) {
  return refused("ncclCommWindowRegister");
}
FIRN_NCCL_ENTRY ncclResult_t ncclCommWindowDeregister(ncclComm_t, void*) {
  return refused("ncclCommWindowDeregister");
}
FIRN_NCCL_ENTRY ncclResult_t ncclDevCommCreate(ncclComm_t, const void*, void*) {
  return refused("ncclDevCommCreate");
}
FIRN_NCCL_ENTRY ncclResult_t ncclDevCommDestroy(ncclComm_t, const void*) {
  return refused("ncclDevCommDestroy");
}

// Entries of NCCL 2.29 and later, which torch 2.12 and later ask for: always refused.
#define FIRN_NCCL_REFUSED(name) \
  FIRN_NCCL_ENTRY ncclResult_t name() { \
    return fail(ncclInvalidUsage, "%s: the software NCCL lacks this function", #name); \
  }
FIRN_NCCL_REFUSED(ncclCommGetUniqueId)
FIRN_NCCL_REFUSED(ncclCommGrow)
FIRN_NCCL_REFUSED(ncclCommMemStats)
FIRN_NCCL_REFUSED(ncclCommResume)
FIRN_NCCL_REFUSED(ncclCommRevoke)
FIRN_NCCL_REFUSED(ncclCommSuspend)
FIRN_NCCL_REFUSED(ncclGetLsaMultimemDevicePointer)
FIRN_NCCL_REFUSED(ncclGetPeerDevicePointer)
FIRN_NCCL_REFUSED(ncclPutSignal)
FIRN_NCCL_REFUSED(ncclSignal)
FIRN_NCCL_REFUSED(ncclWaitSignal)
FIRN_NCCL_REFUSED(ncclWinGetUserPtr)
#undef FIRN_NCCL_REFUSED
