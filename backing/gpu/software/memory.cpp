// Physical memory: files of memory, frames, the heap of linear allocations.
#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "gpu.h"
#include "tags.h"

namespace firn::software {

namespace {
// Sparse: larger than any device will ever be.
constexpr uint64_t file_bytes = uint64_t{1} << 42;
}  // namespace

std::optional<uint64_t> Stretches::take(uint64_t bytes) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second < bytes) continue;
    const uint64_t base = it->first, left = it->second - bytes;
    auto rest = free_.extract(it);  // (Nothing is allocated, and nothing lost for want of memory.)
    if (left) {
      rest.key() = base + bytes;
      rest.mapped() = left;
      free_.insert(std::move(rest));
    }
    return base;
  }
  return std::nullopt;
}

void Stretches::give(uint64_t base, uint64_t bytes) {
  auto next = free_.lower_bound(base);
  const bool joins_next = next != free_.end() && base + bytes == next->first;
  if (next != free_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == base) {
      previous->second += bytes + (joins_next ? next->second : 0);
      if (joins_next) free_.erase(next);
      return;
    }
  }
  if (joins_next) {
    auto grown = free_.extract(next);
    grown.key() = base;
    grown.mapped() += bytes;
    free_.insert(std::move(grown));
    return;
  }
  free_[base] = bytes;
}

MemoryFile::MemoryFile(const std::string& name, uint64_t bytes) {
  fd_ = ::memfd_create(name.c_str(), MFD_CLOEXEC);
  if (fd_ < 0) die("memfd_create", std::strerror(errno));
  if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) die("ftruncate", std::strerror(errno));
}

MemoryFile::~MemoryFile() {
  if (fd_ >= 0) ::close(fd_);
}
MemoryFile::MemoryFile(MemoryFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      kept_(std::move(other.kept_)),
      kept_bytes_(std::exchange(other.kept_bytes_, 0)) {}
MemoryFile& MemoryFile::operator=(MemoryFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(kept_, other.kept_);
  std::swap(kept_bytes_, other.kept_bytes_);
  return *this;
}

bool MemoryFile::claim(uint64_t offset, uint64_t bytes) {
  const uint64_t end = (offset + bytes) / granule_bytes;
  if (kept_.size() < end) kept_.resize(end);
  bool all = true;
  for (uint64_t i = offset / granule_bytes; i < end; ++i) {
    all = all && kept_[i];
    if (!kept_[i]) continue;
    kept_[i] = false;
    kept_bytes_ -= granule_bytes;
    clear(i * granule_bytes, granule_bytes);
  }
  return all;
}

void MemoryFile::clear(uint64_t offset, uint64_t bytes) const {
  static char zeros[128 << 10];  // (they stay in the processor's cache)
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t n = ::pwrite(fd_, zeros, std::min<uint64_t>(sizeof zeros, bytes - done),
                               static_cast<off_t>(offset + done));
    if (n < 0 && errno != EINTR) die("pwrite", std::string("clearing: ") + std::strerror(errno));
    done += n > 0 ? static_cast<uint64_t>(n) : 0;
  }
}

void MemoryFile::release(uint64_t offset, uint64_t bytes, bool mapped_before) {
  if (!mapped_before || kept_bytes_ + bytes > kept_most) return punch(offset, bytes);
  for (uint64_t i = offset / granule_bytes; i < (offset + bytes) / granule_bytes; ++i)
    kept_[i] = true;
  kept_bytes_ += bytes;
}

void MemoryFile::punch(uint64_t offset, uint64_t bytes) const {
  int result;
  do {
    result = ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                         static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0) die("fallocate", std::string("punching a hole: ") + std::strerror(errno));
}

Heap::Heap(const std::string& name, uint64_t bytes) : file_(name, bytes), bytes_(bytes) {
  void* at = ::mmap(nullptr, bytes + granule_bytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) die("mmap", std::string("a device's heap: ") + std::strerror(errno));
  const uint64_t raw = reinterpret_cast<uint64_t>(at);
  base_ = round_up(raw, granule_bytes);
  if (base_ > raw && ::munmap(at, base_ - raw) != 0) die("munmap", std::strerror(errno));
  const uint64_t tail = raw + granule_bytes - base_;
  if (tail && ::munmap(reinterpret_cast<void*>(base_ + bytes), tail) != 0)
    die("munmap", std::strerror(errno));
  at = ::mmap(reinterpret_cast<void*>(base_), bytes, PROT_NONE,
              MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file_.fd(), 0);
  if (at == MAP_FAILED) die("mmap", std::string("a device's heap: ") + std::strerror(errno));
  // A forked child must not write into its parent's GPU.
  if (::madvise(at, bytes, MADV_DONTFORK) != 0) die("madvise", std::strerror(errno));
  free_ = Stretches(base_, bytes);
}

std::optional<uint64_t> Heap::take(size_t bytes, uint64_t room_bytes, uint64_t* committed_bytes) {
  std::optional<uint64_t> address = free_.take(bytes);
  if (!address) return std::nullopt;
  const uint64_t first = (*address - base_) / granule_bytes;
  const uint64_t last = (*address + bytes - 1 - base_) / granule_bytes;
  uint64_t needed = 0;
  for (uint64_t i = first; i <= last; ++i) needed += users_.contains(i) ? 0 : granule_bytes;
  if (needed > room_bytes) {
    free_.give(*address, bytes);
    return std::nullopt;
  }
  for (uint64_t i = first; i <= last; ++i) ++users_[i];
  if (needed && ::mprotect(reinterpret_cast<void*>(base_ + first * granule_bytes),
                           (last - first + 1) * granule_bytes, PROT_READ | PROT_WRITE) != 0)
    die("mprotect", std::strerror(errno));
  *committed_bytes = needed;
  return address;
}

uint64_t Heap::give(uint64_t address, size_t bytes) {
  const uint64_t first = (address - base_) / granule_bytes;
  const uint64_t last = (address + bytes - 1 - base_) / granule_bytes;
  uint64_t returned = 0;
  for (uint64_t i = first; i <= last; ++i) {
    auto it = users_.find(i);
    if (--it->second) continue;
    users_.erase(it);
    returned += granule_bytes;
    if (::mprotect(reinterpret_cast<void*>(base_ + i * granule_bytes), granule_bytes,
                   PROT_NONE) != 0)
      die("mprotect", std::strerror(errno));
    file_.punch(i * granule_bytes, granule_bytes);
  }
  free_.give(address, bytes);
  return returned;
}

void Heap::destroy() {
  if (bytes_ && ::munmap(reinterpret_cast<void*>(base_), bytes_) != 0)
    die("munmap", std::strerror(errno));
  *this = Heap();
}

void DeviceMemory::open(int ordinal) {
  if (opened) return;
  const std::string name = "firn-gpu" + std::to_string(ordinal);
  frame_file = MemoryFile(name + "-frames", file_bytes);
  frame_space = Stretches(0, file_bytes);
  // Several times the capacity: fragmentation shall not end the addresses before the memory.
  const uint64_t span = round_up(4 * capacity, granule_bytes) + (uint64_t{16} << 30);
  small = Heap(name + "-small", span);
  large = Heap(name + "-large", span);
  opened = true;
}

std::shared_ptr<Frame> AddressSpace::create_frame(DeviceMemory* memory, int device, size_t bytes,
                                                  const CUmemAllocationProp& prop) {
  auto frame = std::make_shared<Frame>();
  frame->device = device;
  frame->bytes = bytes;
  frame->prop = prop;
  frame->references = 1;
  if (!memory && host_file_.fd() < 0) {
    host_file_ = MemoryFile("firn-gpu-host", file_bytes);
    host_space_ = Stretches(0, file_bytes);
  }
  auto& space = memory ? memory->frame_space : host_space_;
  auto offset = space.take(bytes);
  if (!offset) return nullptr;
  frame->offset = *offset;
  try {
    if (!gpu().config.no_bytes)
      frame->mapped_before = (memory ? memory->frame_file : host_file_).claim(*offset, bytes);
    if (gpu().config.tags) frame->tags = undefined_tags(bytes);
  } catch (const std::bad_alloc&) {
    space.give(*offset, bytes);
    throw;
  }
  if (memory) {
    memory->frame_bytes.add(bytes);
    memory->used_bytes.add(bytes);
    ++memory->frames;
  }
  return frame;
}

int AddressSpace::file_of(const Frame& frame) const {
  if (frame.imported_fd >= 0) return frame.imported_fd;
  return frame.device >= 0 ? gpu().device(frame.device).memory.frame_file.fd() : host_file_.fd();
}

void AddressSpace::drop_if_unused(const std::shared_ptr<Frame>& frame) {
  if (frame->references || frame->mappings) return;
  if (frame->imported_fd >= 0) {
    ::close(frame->imported_fd);
    frame->imported_fd = -1;
    return;  // the exporter's memory
  }
  DeviceMemory* memory = frame->device >= 0 ? &gpu().device(frame->device).memory : nullptr;
  if (!frame->exported) {  // else another process may still have it mapped
    MemoryFile& file = memory ? memory->frame_file : host_file_;
    if (!gpu().config.no_bytes) file.release(frame->offset, frame->bytes, frame->mapped_before);
    (memory ? memory->frame_space : host_space_).give(frame->offset, frame->bytes);
  }
  if (memory) {
    memory->frame_bytes.subtract(frame->bytes);
    memory->used_bytes.subtract(frame->bytes);
    --memory->frames;
  }
}

}  // namespace firn::software
