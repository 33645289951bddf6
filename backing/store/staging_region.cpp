// Staging memory: private anonymous pages, aligned to huge pages, that a child after fork does not
// see (so that a fork with I/O in flight can never copy a page the device is writing to).
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>

#include "backing/store/spill_file.h"
#include "firn/store.h"

#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)
#endif

namespace firn {

namespace {

constexpr size_t huge_bytes = size_t{2} << 20;
constexpr size_t mapping_bytes(size_t bytes) {
  return (bytes + huge_bytes - 1) / huge_bytes * huge_bytes;
}
constexpr int protection = PROT_READ | PROT_WRITE;
constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS;

/// Whether the system gives transparent huge pages to those who ask.
bool transparent_pages() {
  std::ifstream in("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string words;
  std::getline(in, words);
  return words.find("[always]") != std::string::npos ||
         words.find("[madvise]") != std::string::npos;
}

/// A mapping of `bytes` at a multiple of huge_bytes; null with errno set on failure.
std::byte* map_aligned(size_t bytes) {
  void* all = ::mmap(nullptr, bytes + huge_bytes, protection, flags, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  auto begin = reinterpret_cast<uintptr_t>(all);
  uintptr_t aligned = (begin + huge_bytes - 1) / huge_bytes * huge_bytes;
  bool trimmed =
      (aligned == begin || ::munmap(all, aligned - begin) == 0) &&
      ::munmap(reinterpret_cast<void*>(aligned + bytes), begin + huge_bytes - aligned) == 0;
  if (trimmed) return reinterpret_cast<std::byte*>(aligned);
  int error = errno;
  (void)::munmap(all, bytes + huge_bytes);
  errno = error;
  return nullptr;
}

}  // namespace

Result<StagingRegion> StagingRegion::create(size_t bytes, bool reserve_only) {
  if (bytes == 0 || bytes % store_alignment != 0)
    return make_error(Code::invalid_argument, 0,
                      "staging of " + std::to_string(bytes) + " bytes: not a multiple of 4 KiB");
  size_t whole = mapping_bytes(bytes);
  StagingRegion region;
  if (reserve_only) {
    void* none = ::mmap(nullptr, whole, PROT_NONE, flags | MAP_NORESERVE, -1, 0);
    if (none == MAP_FAILED)
      return make_error(Code::host_out_of_memory, errno,
                        "addresses of " + std::to_string(bytes) + " bytes: mmap: " +
                            errno_words(errno) + " (firn_host)");
    region.bytes_ = {static_cast<std::byte*>(none), bytes};
    region.pages_ = "none";
    return region;
  }
  void* huge = ::mmap(nullptr, whole, protection, flags | MAP_HUGETLB | MAP_HUGE_2MB, -1, 0);
  std::byte* data = huge == MAP_FAILED ? map_aligned(whole) : static_cast<std::byte*>(huge);
  if (!data)
    return make_error(Code::host_out_of_memory, errno,
                      "staging of " + std::to_string(bytes) +
                          " bytes: mmap: " + errno_words(errno) + " (firn_host)");
  region.bytes_ = {data, bytes};
  region.pages_ = "hugetlb";
  if (huge == MAP_FAILED)
    region.pages_ =
        transparent_pages() && ::madvise(data, whole, MADV_HUGEPAGE) == 0 ? "transparent" : "4 KiB";
  if (::madvise(data, whole, MADV_DONTFORK) != 0)
    return make_error(Code::host_out_of_memory, errno,
                      "staging: madvise(MADV_DONTFORK): " + errno_words(errno));
  return region;
}

StagingRegion::StagingRegion(StagingRegion&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), pages_(other.pages_) {}

StagingRegion& StagingRegion::operator=(StagingRegion&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(pages_, other.pages_);
  return *this;
}

StagingRegion::~StagingRegion() {
  if (!bytes_.empty()) (void)::munmap(bytes_.data(), mapping_bytes(bytes_.size()));
}

}  // namespace firn
