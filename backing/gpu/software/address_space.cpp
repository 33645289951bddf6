// Addresses: reservations and mappings, linear and host allocations, and what an address is.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "arrivals.h"
#include "sticky.h"
#include "gpu.h"

namespace firn::software {

namespace {
std::string range_words(uint64_t address, size_t bytes) {
  return "[" + hex(address) + ", +" + hex(bytes) + ")";
}

// The element of an ordered map of ranges that holds `address`, or end().
template <class Map, class Size>
auto around(Map& map, uint64_t address, Size&& size) {
  auto it = map.upper_bound(address);
  if (it == map.begin()) return map.end();
  --it;
  return address - it->first < size(it->second) ? it : map.end();
}
// Makes reserved addresses inaccessible again.
bool seal(uint64_t address, size_t bytes) {
  return ::mmap(pointer(address), bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

const auto size_of = [](const auto& item) { return item.bytes; };
const auto itself = [](size_t bytes) { return bytes; };
}  // namespace

int Mapping::protection() const {
  int best = 0;
  for (uint8_t flags : access) best = std::max<int>(best, flags);
  return best == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
         : best == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                    : PROT_NONE;
}

CUresult AddressSpace::reserve(uint64_t* address, size_t bytes, size_t alignment, uint64_t hint) {
  if (alignment < granule_bytes) alignment = granule_bytes;
  const size_t span = bytes + alignment;
  if (span < bytes) return CUDA_ERROR_INVALID_VALUE;
  void* at = MAP_FAILED;
  if (hint && hint % alignment == 0)
    at = ::mmap(pointer(hint), bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  uint64_t base = reinterpret_cast<uint64_t>(at);
  if (at == MAP_FAILED) {
    at = ::mmap(nullptr, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t raw = reinterpret_cast<uint64_t>(at);
    base = round_up(raw, alignment);
    if (base > raw && ::munmap(at, base - raw) != 0) die("munmap", std::strerror(errno));
    if (const uint64_t tail = raw + span - base - bytes;
        tail && ::munmap(pointer(base + bytes), tail) != 0)
      die("munmap", std::strerror(errno));
  }
  try {
    reservations_[base] = bytes;
  } catch (const std::bad_alloc&) {
    if (::munmap(pointer(base), bytes) != 0) die("munmap", std::strerror(errno));
    throw;
  }
  *address = base;
  return CUDA_SUCCESS;
}

CUresult AddressSpace::free_reservation(const char* entry, uint64_t address, size_t bytes) {
  auto it = reservations_.find(address);
  if (it == reservations_.end() || it->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  auto mapped = mappings_.lower_bound(address);
  if (mapped != mappings_.end() && mapped->first < address + bytes)
    die(entry, "reservation " + range_words(address, bytes) + " freed while " +
                   hex(mapped->first) + " in it is mapped");
  if (::munmap(pointer(address), bytes) != 0) die(entry, std::strerror(errno));
  reservations_.erase(it);
  return CUDA_SUCCESS;
}

uint64_t AddressSpace::reserved_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [address, size] : reservations_) bytes += size;
  return bytes;
}

bool AddressSpace::reserved(uint64_t address) const {
  return around(reservations_, address, itself) != reservations_.end();
}

CUresult AddressSpace::map_frame(const char* entry, uint64_t address, size_t bytes,
                                 const Frame& frame) const {
  void* at = ::mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                    file_of(frame), static_cast<off_t>(frame.offset));
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  // A forked child must not write into its parent's GPU.
  if (::madvise(at, bytes, MADV_DONTFORK) != 0) {
    if (!seal(address, bytes)) die(entry, std::string("madvise, mmap: ") + std::strerror(errno));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

CUresult AddressSpace::map(const char* entry, uint64_t address, size_t bytes,
                           const std::shared_ptr<Frame>& frame) {
  auto home = around(reservations_, address, itself);
  if (home == reservations_.end() || address + bytes > home->first + home->second)
    die(entry, range_words(address, bytes) + " does not lie in one reservation");
  auto next = mappings_.lower_bound(address);
  if (next != mappings_.end() && next->first < address + bytes)
    die(entry, range_words(address, bytes) + " overlaps the mapping at " + hex(next->first));
  if (auto it = around(mappings_, address, size_of); it != mappings_.end())
    die(entry, range_words(address, bytes) + " overlaps the mapping at " + hex(it->first));
  // Nothing is touched: no page table, no limit of mappings (vm.max_map_count).
  const auto made =
      mappings_.emplace(address, Mapping{.base = address, .bytes = bytes, .frame = frame}).first;
  if (!gpu().config.no_bytes) {
    const CUresult result = map_frame(entry, address, bytes, *frame);
    if (result != CUDA_SUCCESS) {
      mappings_.erase(made);
      return result;
    }
  }
  ++frame->mappings;
  if (frame->device >= 0) gpu().device(frame->device).memory.mapped_bytes += bytes;
  return CUDA_SUCCESS;
}

CUresult AddressSpace::unmap(const char* entry, uint64_t address, size_t bytes) {
  const uint64_t end = address + bytes;
  auto first = mappings_.find(address);
  if (first == mappings_.end()) {
    auto it = around(mappings_, address, size_of);
    die(entry, hex(address) + (it == mappings_.end() ? " is not mapped"
                                                     : " lies inside the mapping at " +
                                                           hex(it->first) +
                                                           ": a mapping cannot be split"));
  }
  uint64_t at = address;
  for (auto it = first; at < end; ++it) {
    if (it == mappings_.end() || it->first != at) die(entry, hex(at) + " is not mapped");
    if (it->first + it->second.bytes > end)
      die(entry, range_words(address, bytes) + " ends inside the mapping at " + hex(it->first) +
                     ": a mapping cannot be split");
    at += it->second.bytes;
  }
  if (const Work* work = gpu().scheduler.user_of(address, bytes))
    die(entry, range_words(address, bytes) + " is used by work that is still queued (" +
                   work->body.entry + " on stream " + hex(work->stream->handle) + ")");
  if (!gpu().config.no_bytes && !seal(address, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  for (auto it = first; it != mappings_.end() && it->first < end;) {
    std::shared_ptr<Frame> frame = std::move(it->second.frame);
    if (frame->device >= 0)
      gpu().device(frame->device).memory.mapped_bytes -= it->second.bytes;
    it = mappings_.erase(it);
    --frame->mappings;
    frame->mapped_before = true;
    drop_if_unused(frame);
  }
  return CUDA_SUCCESS;
}

CUresult AddressSpace::set_access(const char* entry, uint64_t address, size_t bytes,
                                  const CUmemAccessDesc* access, size_t count) {
  const uint64_t end = address + bytes;
  auto first = around(mappings_, address, size_of);
  uint64_t at = address;
  for (auto it = first; at < end; ++it) {
    if (it == mappings_.end() || it->first > at) die(entry, hex(at) + " is not mapped");
    at = it->first + it->second.bytes;
  }
  if (first->first != address || at != end)
    die(entry, range_words(address, bytes) + " begins or ends inside a mapping");
  for (size_t i = 0; i < count; ++i) {
    if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
        !gpu().has_device(access[i].location.id))
      return CUDA_ERROR_INVALID_DEVICE;
    if (access[i].location.type == CU_MEM_LOCATION_TYPE_INVALID) return CUDA_ERROR_INVALID_VALUE;
  }
  for (auto it = first; it != mappings_.end() && it->first < end; ++it) {
    Mapping& mapping = it->second;
    for (size_t i = 0; i < count; ++i)
      if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        mapping.access[access[i].location.id] = static_cast<uint8_t>(access[i].flags);
    const int protection = mapping.protection();
    mapping.reachable = protection != PROT_NONE;
    if (protection == PROT_READ) explain_faults();
    if (!gpu().config.no_bytes &&
        ::mprotect(pointer(mapping.base), mapping.bytes, protection) != 0)
      return CUDA_ERROR_OUT_OF_MEMORY;
    // A GPU's mapping is whole at once; here each page would be a fault of its own.
    if (!gpu().config.no_bytes && mapping.frame->mapped_before && (protection & PROT_WRITE))
      (void)::madvise(pointer(mapping.base), mapping.bytes, MADV_POPULATE_WRITE);
  }
  close_arriving(address, bytes);
  return CUDA_SUCCESS;
}

const Mapping* AddressSpace::mapping_around(uint64_t address) const {
  auto it = around(mappings_, address, size_of);
  return it == mappings_.end() ? nullptr : &it->second;
}

size_t AddressSpace::mappings_in(uint64_t address, size_t bytes) const {
  return static_cast<size_t>(std::distance(mappings_.lower_bound(address),
                                           mappings_.lower_bound(address + bytes)));
}

CUresult AddressSpace::allocate_linear(DeviceMemory& memory, Allocation wanted, uint64_t* address) {
  const bool is_large = wanted.bytes >= granule_bytes / 2;
  if (wanted.bytes > memory.capacity) return CUDA_ERROR_OUT_OF_MEMORY;
  wanted.held_bytes = round_up(wanted.bytes, is_large ? granule_bytes : linear_alignment);
  uint64_t committed = 0;
  auto at = (is_large ? memory.large : memory.small)
                .take(wanted.held_bytes, memory.free_bytes(), &committed);
  if (!at) return CUDA_ERROR_OUT_OF_MEMORY;
  memory.linear_bytes.add(committed);
  memory.used_bytes.add(committed);
  wanted.base = *at;
  wanted.id = ++ids_;
  allocations_[*at] = wanted;
  *address = *at;
  return CUDA_SUCCESS;
}

void AddressSpace::free_linear(DeviceMemory& memory, uint64_t base) {
  auto it = allocations_.find(base);
  Heap& heap = memory.large.contains(base) ? memory.large : memory.small;
  const uint64_t returned = heap.give(base, it->second.held_bytes);
  memory.linear_bytes.subtract(returned);
  memory.used_bytes.subtract(returned);
  allocations_.erase(it);
}

CUresult AddressSpace::allocate_host(Allocation wanted, uint64_t* address) {
  wanted.held_bytes = round_up(wanted.bytes, 4096);
  void* at = ::mmap(nullptr, wanted.held_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  wanted.base = reinterpret_cast<uint64_t>(at);
  wanted.kind = Allocation::Kind::host;
  wanted.id = ++ids_;
  registered_bytes_ += wanted.bytes;
  allocations_[wanted.base] = wanted;
  *address = wanted.base;
  return CUDA_SUCCESS;
}

bool AddressSpace::host_overlaps(uint64_t address, size_t bytes) const {
  if (allocation_around(address)) return true;
  auto next = allocations_.lower_bound(address);
  return next != allocations_.end() && next->first < address + bytes;
}

CUresult AddressSpace::register_host(Allocation wanted) {
  if (host_overlaps(wanted.base, wanted.bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  // MS_ASYNC only proves that the pages are mapped.
  const uint64_t first = wanted.base / 4096 * 4096;
  if (::msync(pointer(first), wanted.base + wanted.bytes - first, MS_ASYNC) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  wanted.kind = Allocation::Kind::registered;
  wanted.id = ++ids_;
  registered_bytes_ += wanted.bytes;
  allocations_[wanted.base] = wanted;
  return CUDA_SUCCESS;
}

void AddressSpace::add_variable(Allocation wanted) {
  wanted.kind = Allocation::Kind::variable;
  wanted.id = ++ids_;
  allocations_[wanted.base] = wanted;
}

const Allocation* AddressSpace::allocation_around(uint64_t address) const {
  auto it = around(allocations_, address, size_of);
  return it == allocations_.end() ? nullptr : &it->second;
}

Allocation* AddressSpace::allocation_at(uint64_t base) {
  auto it = allocations_.find(base);
  return it == allocations_.end() ? nullptr : &it->second;
}

void AddressSpace::forget(uint64_t base) {
  auto it = allocations_.find(base);
  if (it->second.kind != Allocation::Kind::variable) registered_bytes_ -= it->second.bytes;
  allocations_.erase(it);
}

void AddressSpace::free_host(uint64_t base) {
  const size_t held = allocations_.at(base).held_bytes;
  forget(base);
  if (::munmap(pointer(base), held) != 0) die("cuMemFreeHost", std::strerror(errno));
}

bool AddressSpace::of_device(uint64_t address) const {
  if (reserved(address)) return true;
  for (const auto& device : gpu().devices)
    if (device->memory.small.contains(address) || device->memory.large.contains(address))
      return true;
  return false;
}

MemoryKind AddressSpace::kind_of(uint64_t address, size_t bytes, int* device) const {
  *device = -1;
  const uint64_t end = address + bytes;
  if (end < address) return MemoryKind::invalid;
  if (const Allocation* allocation = allocation_around(address)) {
    const bool inside = end <= allocation->base + allocation->bytes;
    if (allocation->on_device()) *device = allocation->device;
    if (allocation->on_device()) return inside ? MemoryKind::device : MemoryKind::invalid;
    return inside ? MemoryKind::pinned : MemoryKind::pageable;
  }
  if (reserved(address)) {
    for (uint64_t at = address; at < end;) {
      const Mapping* mapping = mapping_around(at);
      if (!mapping || !mapping->reachable) return MemoryKind::invalid;
      if (*device < 0) *device = mapping->frame->device;
      at = mapping->base + mapping->bytes;
    }
    if (*device < 0) *device = 0;  // host memory behind device addresses
    return MemoryKind::device;
  }
  return of_device(address) ? MemoryKind::invalid : MemoryKind::pageable;
}

bool AddressSpace::open_to(uint64_t address, size_t bytes, int device) const {
  for (auto it = around(mappings_, address, size_of);
       it != mappings_.end() && it->first < address + bytes; ++it)
    if (it->second.access[device] == CU_MEM_ACCESS_FLAGS_PROT_NONE) return false;
  return true;
}

void AddressSpace::reset() {
  for (auto& [base, mapping] : mappings_) --mapping.frame->mappings;
  mappings_.clear();
  for (auto& [base, bytes] : reservations_)
    if (::munmap(pointer(base), bytes) != 0) die("firnGpuReset", std::strerror(errno));
  for (auto& [base, allocation] : allocations_)
    if (allocation.kind == Allocation::Kind::host &&
        ::munmap(pointer(base), allocation.held_bytes) != 0)
      die("firnGpuReset", std::strerror(errno));
  for (auto& device : gpu().devices) {
    device->memory.small.destroy();
    device->memory.large.destroy();
  }
  *this = AddressSpace();
}

}  // namespace firn::software
