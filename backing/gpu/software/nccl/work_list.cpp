// The list of work in host memory: see work_list.h.
#include "backing/gpu/software/nccl/work_list.h"

#include <cstdlib>
#include <cstring>

#include "backing/gpu/software/nccl/driver.h"

namespace firn::nccl {

bool WorkList::open_frames() {
  const char* const wanted = std::getenv("NCCL_CUMEM_HOST_ENABLE");
  if (wanted != nullptr && std::strcmp(wanted, "0") == 0) return false;
  CUmemAllocationProp what{};
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  what.location.id = 0;
  CUmemGenericAllocationHandle frame = 0;
  if (driver().cuMemCreate(&frame, 2 * bytes, &what, 0) != CUDA_SUCCESS) return false;
  CUdeviceptr at = 0;
  CUmemAccessDesc access[2] = {};
  access[0].location = what.location;
  access[0].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  access[1].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  using Old = CUresult (*)(CUdevice*);
  CUdevice device = 0;
  if (reinterpret_cast<Old>(driver().cuCtxGetDevice)(&device) != CUDA_SUCCESS) device = 0;
  access[1].location.id = device;
  bool mapped = false;
  bool good = driver().cuMemAddressReserve(&at, 2 * bytes, 0, 0, 0) == CUDA_SUCCESS;
  if (good) good = mapped = driver().cuMemMap(at, 2 * bytes, 0, frame, 0) == CUDA_SUCCESS;
  if (good) good = driver().cuMemSetAccess(at, 2 * bytes, access, 2) == CUDA_SUCCESS;
  (void)driver().cuMemRelease(frame);  // the mapping keeps it
  if (good) {
    first_ = reinterpret_cast<Work*>(at);
    return frames_ = true;
  }
  if (mapped) (void)driver().cuMemUnmap(at, 2 * bytes);
  if (at != 0) (void)driver().cuMemAddressFree(at, 2 * bytes);
  return false;
}

ncclResult_t WorkList::open() {
  if (open_frames()) return ncclSuccess;
  void* at = nullptr;
  FIRN_NCCL_TRY(checked("cuMemHostAlloc", driver().cuMemHostAlloc(
                                              &at, bytes, CU_MEMHOSTALLOC_PORTABLE |
                                                              CU_MEMHOSTALLOC_DEVICEMAP)));
  first_ = static_cast<Work*>(at);
  return ncclSuccess;
}

void WorkList::close() {
  if (first_ != nullptr && frames_) {
    const auto at = reinterpret_cast<CUdeviceptr>(first_);
    (void)driver().cuMemUnmap(at, 2 * bytes);
    (void)driver().cuMemAddressFree(at, 2 * bytes);
  }
  // (Pinned memory goes with the process: freeing it would wait for all of the context's work.)
  first_ = nullptr;
}

ncclResult_t WorkList::write(std::span<const Work> works, const Work** at, uint64_t* taken) {
  if (works.size() > capacity)
    return fail(ncclInvalidUsage, "a group of %zu pieces of work: %zu at most", works.size(),
                capacity);
  if (first_ == nullptr) FIRN_NCCL_TRY(open());
  const size_t position = written_ % capacity;
  const size_t skipped = position + works.size() > capacity ? capacity - position : 0;
  *taken = skipped + works.size();
  // (A list longer than half of the ring waits until all is read.)
  const uint64_t most = *taken > capacity ? 0 : capacity - *taken;
  for (uint64_t read = read_.load(std::memory_order_acquire); written_ - read > most;
       read = read_.load(std::memory_order_acquire))
    read_.wait(read);
  Work* const begin = first_ + (written_ + skipped) % capacity;
  std::memcpy(static_cast<void*>(begin), works.data(), works.size_bytes());
  written_ += *taken;
  *at = begin;
  return ncclSuccess;
}

}  // namespace firn::nccl
