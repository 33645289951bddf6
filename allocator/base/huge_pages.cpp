#include "allocator/base/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

#include "firn/check.h"

#ifdef __SANITIZE_ADDRESS__
// LeakSanitizer scans mapped memory for pointers only where it is registered.
#include <sanitizer/lsan_interface.h>
#endif

namespace firn {

namespace {
constexpr size_t huge_page_bytes = 2u << 20;
size_t whole(size_t bytes) {
  return (bytes + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
}
}  // namespace

void* take_huge(size_t bytes) {
  const size_t wanted = whole(bytes), taken = wanted + huge_page_bytes;
  void* mapped = ::mmap(nullptr, taken, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  // Gives back the memory before and after the aligned part.
  const auto begin = reinterpret_cast<uintptr_t>(mapped), aligned = whole(begin);
  if (aligned > begin) ::munmap(mapped, aligned - begin);
  auto* memory = reinterpret_cast<void*>(aligned);
  if (const size_t behind = begin + taken - aligned - wanted)
    ::munmap(static_cast<char*>(memory) + wanted, behind);
  (void)::madvise(memory, wanted, MADV_HUGEPAGE);  // refused: small pages do, only slower
#ifdef __SANITIZE_ADDRESS__
  __lsan_register_root_region(memory, wanted);
#endif
  return memory;
}

void give_huge(void* memory, size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  __lsan_unregister_root_region(memory, whole(bytes));
#endif
  FIRN_CHECK(::munmap(memory, whole(bytes)) == 0, "munmap of %p, %zu bytes", memory, bytes);
}

}  // namespace firn
