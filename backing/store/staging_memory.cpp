// Staging memory: private anonymous pages, aligned to huge pages, that a child after fork does not
// see (so that a fork with I/O in flight can never copy a page the device is writing to).
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
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

/// Addresses for `bytes` at a multiple of huge_bytes, with a guard of huge_bytes behind: pieces
/// are never adjacent, so that no range given to a driver or a ring crosses from one registration
/// into the next. Null with errno set on failure.
std::byte* reserve_aligned(size_t bytes) {
  const size_t kept = bytes + huge_bytes;
  void* all = ::mmap(nullptr, kept + huge_bytes, PROT_NONE, flags, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  auto begin = reinterpret_cast<uintptr_t>(all);
  uintptr_t aligned = (begin + huge_bytes - 1) / huge_bytes * huge_bytes;
  bool trimmed =
      (aligned == begin || ::munmap(all, aligned - begin) == 0) &&
      ::munmap(reinterpret_cast<void*>(aligned + kept), begin + huge_bytes - aligned) == 0;
  if (trimmed) return reinterpret_cast<std::byte*>(aligned);
  int error = errno;
  (void)::munmap(all, kept + huge_bytes);
  errno = error;
  return nullptr;
}

/// Addresses for a simulation, as reserve_aligned() gives them, each above those before: which
/// piece is the lowest does not depend on the system's holes. Null where there are none left.
std::byte* reserve_in_order(size_t bytes) {
  constexpr size_t all_bytes = size_t{1} << 40;
  static const uintptr_t all = [] {
    void* at = ::mmap(nullptr, all_bytes, PROT_NONE, flags | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? 0 : reinterpret_cast<uintptr_t>(at);
  }();
  static std::atomic<size_t> taken{huge_bytes - all % huge_bytes};
  const size_t kept = (bytes + 2 * huge_bytes - 1) / huge_bytes * huge_bytes;
  const size_t at = all ? taken.fetch_add(kept) : all_bytes;
  return at + kept <= all_bytes ? reinterpret_cast<std::byte*>(all + at) : nullptr;
}

// (The system call itself: libnuma is for programs that choose among nodes themselves.)
void prefer_node(std::byte* data, size_t bytes, int node) {
  constexpr int preferred = 1;  // MPOL_PREFERRED
  constexpr int bits = 8 * sizeof(unsigned long);
  unsigned long mask[16] = {};
  if (node < 0 || node >= 16 * bits) return;
  mask[node / bits] = 1ul << node % bits;
  (void)::syscall(SYS_mbind, data, bytes, preferred, mask, 16ul * bits, 0u);
}

/// The same in huge pages that are there now; null where the system has too few, or a cgroup may
/// not have them (hugetlb.2MB.max is found out page by page), or the kernel cannot say (before
/// 5.14). The address is found with the guard behind it, since the kernel puts such a mapping next
/// to another. (Never over an existing mapping: the kernel takes that away before it refuses for
/// want of pages, and other threads' memory may be in its place by then. Nor over what they map
/// there meanwhile.)
std::byte* map_huge(size_t bytes, int node) {
  std::byte* base = reserve_aligned(bytes);
  if (!base) return nullptr;
  std::byte* guard = base + bytes;
  if (::munmap(base, bytes) != 0) {
    (void)::munmap(base, bytes + huge_bytes);
    return nullptr;
  }
  void* data = ::mmap(base, bytes, protection,
                      flags | MAP_HUGETLB | MAP_HUGE_2MB | MAP_FIXED_NOREPLACE, -1, 0);
  if (data == base) {
    prefer_node(base, bytes, node);
    if (::madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return base;
    (void)::munmap(data, bytes + huge_bytes);
    return nullptr;
  }
  if (data != MAP_FAILED) (void)::munmap(data, bytes);  // (an old kernel chose another address)
  (void)::munmap(guard, huge_bytes);
  return nullptr;
}

}  // namespace

Result<StagingMemory> StagingMemory::create(size_t bytes, bool reserve_only, int node,
                                            bool huge) {
  if (bytes == 0 || bytes % store_alignment != 0)
    return invalid("staging of " + std::to_string(bytes) + " bytes: not a multiple of 4 KiB");
  const size_t whole = mapping_bytes(bytes);
  const auto refused = [bytes](const char* call) {
    return make_error(Code::host_out_of_memory, errno,
                      "staging of " + std::to_string(bytes) + " bytes: " + call + ": " +
                          errno_words(errno) + " (firn_host)");
  };
  std::byte* data = reserve_only ? reserve_in_order(whole) : huge ? map_huge(whole, node) : nullptr;
  huge = data != nullptr && !reserve_only;
  if (!data) data = reserve_aligned(whole);
  if (!data) return refused("mmap");
  StagingMemory memory;
  memory.bytes_ = {data, bytes};  // unmapped by the destructor from here on
  memory.pages_ = "none";
  if (reserve_only) return memory;
  if (huge) {
    memory.pages_ = "hugetlb";
  } else {
    if (::mprotect(data, whole, protection) != 0) return refused("mprotect");
    memory.pages_ = transparent_pages() && ::madvise(data, whole, MADV_HUGEPAGE) == 0
                        ? "transparent"
                        : "4 KiB";
  }
  if (::madvise(data, whole, MADV_DONTFORK) != 0) return refused("madvise(MADV_DONTFORK)");
  (void)::madvise(data, whole, MADV_DONTDUMP);  // no weights in core files; refused by old kernels
  if (!huge) prefer_node(data, whole, node);
  return memory;
}

void StagingMemory::populate() {
  // (Kernels before 5.14 refuse: then each page is found at its first access, as ever.)
  if (!bytes_.empty()) (void)::madvise(bytes_.data(), bytes_.size(), MADV_POPULATE_WRITE);
}

StagingMemory::StagingMemory(StagingMemory&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), pages_(other.pages_) {}

StagingMemory& StagingMemory::operator=(StagingMemory&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(pages_, other.pages_);
  return *this;
}

StagingMemory::~StagingMemory() {
  if (!bytes_.empty()) (void)::munmap(bytes_.data(), mapping_bytes(bytes_.size()) + huge_bytes);
}

}  // namespace firn
