// Huge pages where this machine has none: mmap of the executable that includes this, once. Owns:
// what it was told. Locks: none.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace firn::testing_store {

/// MAP_HUGETLB is answered with ordinary pages, of which those beyond `granted` bytes cannot be had
/// (as beyond a cgroup's hugetlb.2MB.max; there the access is SIGBUS, here SIGSEGV).
struct HugePages {
  bool given = false;
  size_t granted = SIZE_MAX;
  std::byte* last = nullptr;  // the newest such mapping
  size_t last_bytes = 0;
  bool hold(const void* at) const { return at >= last && at < last + last_bytes; }
};
inline HugePages huge_pages;

}  // namespace firn::testing_store

extern "C" void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset)
    noexcept {
  auto& pages = firn::testing_store::huge_pages;
  const bool huge = pages.given && (flags & MAP_HUGETLB);
  if (huge && !at) {
    // Where the kernel would put them: it needs no pages to say so.
    const long place =
        ::syscall(SYS_mmap, nullptr, bytes, protection, flags | MAP_NORESERVE, fd, offset);
    if (place != -1) {
      at = reinterpret_cast<void*>(place);
      (void)::munmap(at, bytes);
      flags |= MAP_FIXED_NOREPLACE;
    }
  }
  if (huge) flags &= ~(MAP_HUGETLB | 63 << MAP_HUGE_SHIFT);
  const long mapped = ::syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
  if (mapped == -1) return MAP_FAILED;
  auto* data = reinterpret_cast<std::byte*>(mapped);
  if (huge) {
    pages.last = data;
    pages.last_bytes = bytes;
    if (bytes > pages.granted)
      (void)::mprotect(data + pages.granted, bytes - pages.granted, PROT_NONE);
  }
  return data;
}
