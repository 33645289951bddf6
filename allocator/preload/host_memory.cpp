#include "allocator/preload/host_memory.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "allocator/preload/handlers.h"
#include "allocator/preload/memory.h"
#include "allocator/preload/views.h"

namespace firn::preload {

namespace {
struct Stretch {
  uint64_t bytes = 0;
  HostMemory::Kind kind = HostMemory::Kind::host;
};
struct List {
  std::shared_mutex mutex;
  std::map<uint64_t, Stretch> ranges;
};
List& list() {
  static List& all = *new List;
  return all;
}

/// May the host read managed memory at any time?
bool managed_is_readable() {
  constexpr int concurrent_managed_access = 89;
  CUdevice device = 0;
  int value = 0;
  return real().cuCtxGetDevice(&device) == CUDA_SUCCESS &&
         real().cuDeviceGetAttribute(&value, concurrent_managed_access, device) == CUDA_SUCCESS &&
         value == 1;
}
}  // namespace

void HostMemory::add(const void* base, uint64_t bytes, Kind kind) {
  if (!base || bytes == 0) return;
  std::lock_guard lock(list().mutex);
  list().ranges[number(base)] = {bytes, kind};
  const uint64_t low = low_.load(std::memory_order_relaxed);
  const uint64_t high = low + span_.load(std::memory_order_relaxed);
  const uint64_t lower = high ? std::min(low, number(base)) : number(base);
  // Between the two stores may_be() errs only towards true, or for a range that is not made yet.
  span_.store(std::max(high, number(base) + bytes) - lower, std::memory_order_release);
  low_.store(lower, std::memory_order_release);
}

void HostMemory::remove(const void* base) {
  std::lock_guard lock(list().mutex);
  list().ranges.erase(number(base));
}

bool HostMemory::collect(uint64_t address, std::vector<uint64_t>& words) const {
  std::shared_lock lock(list().mutex);
  auto found = list().ranges.upper_bound(address);
  if (found == list().ranges.begin()) return true;
  --found;
  const auto [bytes, kind] = found->second;
  if (address - found->first >= bytes) return true;
  if (kind == Kind::managed && !managed_is_readable()) return false;
  uint64_t from = found->first;
  uint64_t length = bytes;
  if (bytes > looked_at_most) {
    from = address & ~uint64_t{7};
    length = std::min(looked_at_most, found->first + bytes - from);
    note_unseen("host memory beyond 64 KiB that kernels were given: addresses in it");
  }
  scan_words(from, reinterpret_cast<const void*>(from), length, tables().arenas(),
             [&](size_t, uint64_t value) { words.push_back(value); });
  return true;
}

namespace {
CUresult known_if_registered(CUresult result, const void* address, size_t bytes) {
  if (result == CUDA_SUCCESS) host_memory().add(address, bytes, HostMemory::Kind::host);
  return result;
}
}  // namespace

CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
  const CUresult result = real().cuMemHostAlloc(address, bytes, flags);
  if (result == CUDA_SUCCESS) host_memory().add(*address, bytes, HostMemory::Kind::host);
  return result;
}
CUresult cuMemAllocHost_v2(void** address, size_t bytes) {
  const CUresult result = real().cuMemAllocHost_v2(address, bytes);
  if (result == CUDA_SUCCESS) host_memory().add(*address, bytes, HostMemory::Kind::host);
  return result;
}
// Forgotten before it is freed: its bytes may be scanned until then.
CUresult cuMemFreeHost(void* address) {
  host_memory().remove(address);
  return real().cuMemFreeHost(address);
}
CUresult cuMemHostRegister(void* address, size_t bytes, unsigned flags) {
  return known_if_registered(real().cuMemHostRegister(address, bytes, flags), address, bytes);
}
CUresult cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
  return known_if_registered(real().cuMemHostRegister_v2(address, bytes, flags), address, bytes);
}
CUresult cuMemHostUnregister(void* address) {
  host_memory().remove(address);
  return real().cuMemHostUnregister(address);
}
CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  const CUresult result = real().cuMemAllocManaged(address, bytes, flags);
  if (result != CUDA_SUCCESS) return result;
  passed_on("managed memory: the driver pages it", bytes);
  host_memory().add(reinterpret_cast<const void*>(*address), bytes, HostMemory::Kind::managed);
  return result;
}

}  // namespace firn::preload
