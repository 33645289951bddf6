// Communicators: see communicator.h.
#include "backing/gpu/software/nccl/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace firn::nccl {
namespace {

ncclResult_t id_from_first(ncclComm_t parent, const std::vector<int>& members, Id* id,
                           bool* first) {
  *first = members.front() == parent->shared->rank();
  return *first ? make_id(id) : ncclSuccess;
}

ncclResult_t make_child(ncclComm_t parent, const std::vector<int>& members, const Id& id,
                        ncclComm_t* made) {
  const auto mine = std::find(members.begin(), members.end(), parent->shared->rank());
  return make_communicator(made, id, static_cast<int>(members.size()),
                           static_cast<int>(mine - members.begin()), parent->context,
                           parent->device);
}

}  // namespace

ncclResult_t current_device(CUcontext* context, CUdevice* device) {
  if (!driver().complete) return ncclUnhandledCudaError;
  FIRN_NCCL_TRY(checked("cuCtxGetCurrent", driver().cuCtxGetCurrent(context)));
  *device = 0;
  if (*context == nullptr)
    return checked("cuDevicePrimaryCtxRetain",
                   driver().cuDevicePrimaryCtxRetain(context, *device));
  using Old = CUresult (*)(CUdevice*);  // as CUDA 12 has it
  return checked("cuCtxGetDevice", reinterpret_cast<Old>(driver().cuCtxGetDevice)(device));
}

ncclResult_t make_communicator(ncclComm_t* made, const Id& id, int ranks, int rank,
                               CUcontext context, CUdevice device) {
  if (!driver().complete) return ncclUnhandledCudaError;
  CUuuid uuid{};
  FIRN_NCCL_TRY(checked("cuDeviceGetUuid", driver().cuDeviceGetUuid(&uuid, device)));
  auto comm = std::make_unique<ncclComm>();
  comm->context = context;
  comm->device = device;
  const InContext in(context);
  FIRN_NCCL_TRY(checked("cuEventCreate",
                        driver().cuEventCreate(&comm->behind, CU_EVENT_DISABLE_TIMING)));
  const ncclResult_t joined = SharedMemory::join(id, ranks, rank, uuid.bytes, &comm->shared);
  if (joined != ncclSuccess) {
    (void)driver().cuEventDestroy(comm->behind);
    return joined;
  }
  *made = comm.release();
  return ncclSuccess;
}

ncclResult_t split(ncclComm_t parent, int color, int key, ncclComm_t* made) {
  *made = nullptr;
  struct Wish {
    int color, key;
  } const wish{color, key};
  SharedMemory& shared = *parent->shared;
  std::vector<std::array<char, exchange_bytes>> all;
  FIRN_NCCL_TRY(shared.exchange(&wish, sizeof wish, &all));
  std::vector<std::pair<int, int>> by_key;
  for (int rank = 0; rank < shared.ranks(); ++rank) {
    Wish each;
    std::memcpy(&each, all[static_cast<size_t>(rank)].data(), sizeof each);
    if (color != no_color && each.color == color) by_key.emplace_back(each.key, rank);
  }
  std::sort(by_key.begin(), by_key.end());
  std::vector<int> members;
  for (const auto& [of, rank] : by_key) members.push_back(rank);
  Id id{};
  bool first = false;
  if (!members.empty()) FIRN_NCCL_TRY(id_from_first(parent, members, &id, &first));
  FIRN_NCCL_TRY(shared.exchange(&id, sizeof id, &all));
  if (members.empty()) return ncclSuccess;
  std::memcpy(&id, all[static_cast<size_t>(members.front())].data(), sizeof id);
  return make_child(parent, members, id, made);
}

ncclResult_t shrink(ncclComm_t parent, const std::vector<int>& excluded, ncclComm_t* made) {
  *made = nullptr;
  SharedMemory& shared = *parent->shared;
  std::vector<int> members;
  for (int rank = 0; rank < shared.ranks(); ++rank)
    if (std::find(excluded.begin(), excluded.end(), rank) == excluded.end())
      members.push_back(rank);
  if (std::find(members.begin(), members.end(), shared.rank()) == members.end())
    return fail(ncclInvalidArgument, "rank %d shrinks a communicator that excludes it",
                shared.rank());
  Id id{};
  bool first = false;
  FIRN_NCCL_TRY(id_from_first(parent, members, &id, &first));
  RankRecord& record = shared.record(members.front());
  const uint64_t number = ++parent->shrinks;
  if (first) {
    std::memcpy(record.shrunk, &id, sizeof id);
    record.shrinks.store(number, std::memory_order_release);
    shared.ring_all();
  } else {
    // (Not wait_until(): a rank that is lost may be why it is shrunk.)
    const auto until = SharedMemory::Clock::now() + std::chrono::minutes(1);
    while (record.shrinks.load(std::memory_order_acquire) < number) {
      if (SharedMemory::Clock::now() > until)
        return fail(ncclSystemError, "rank %d did not shrink the communicator within a minute",
                    members.front());
      shared.wait_for_bell(shared.bell());
    }
    std::memcpy(&id, record.shrunk, sizeof id);
  }
  return make_child(parent, members, id, made);
}

ncclResult_t wait_for_kernels(ncclComm_t comm) {
  const InContext in(comm->context);
  while (comm->ended.load(std::memory_order_acquire) !=
         comm->enqueued.load(std::memory_order_acquire)) {
    const CUresult state = driver().cuEventQuery(comm->behind);
    if (state != CUDA_SUCCESS && state != CUDA_ERROR_NOT_READY)
      return checked("cuEventQuery", state);  // a device that failed runs nothing any more
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return ncclSuccess;
}

ncclResult_t end_communicator(ncclComm_t comm, bool abort) {
  if (abort) {
    comm->signals.abort.store(true, std::memory_order_release);
    comm->shared->ring(comm->shared->rank());
  }
  const ncclResult_t waited = wait_for_kernels(comm);
  comm->shared->leave(abort ? RankRecord::aborted : RankRecord::left);
  // Kernels that never ran may still use it: then it stays.
  if (waited != ncclSuccess) return waited;
  const InContext in(comm->context);
  (void)driver().cuEventDestroy(comm->behind);
  comm->list.close();
  delete comm;
  return ncclSuccess;
}

}  // namespace firn::nccl
