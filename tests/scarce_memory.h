// operator new of the whole program, from which a thread is given so much and no more; the software
// GPU, in place of a driver that has memory of its own, always has some. In one file of a program.
#pragma once

#include <link.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace firn::test {

inline thread_local long memory_left = -1;  // so many more are given to this thread; negative: all
inline thread_local unsigned long memory_refused = 0;  // so often it was given none

/// Code of the software GPU's library, where it is loaded.
inline bool of_software_gpu(const void* caller) noexcept {
  struct Look {
    const char* caller;
    bool found;
  } look{static_cast<const char*>(caller), false};
  (void)::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& of = *static_cast<Look*>(data);
        if (std::strstr(info->dlpi_name, "/libcuda.so") == nullptr) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto* begin =
              reinterpret_cast<const char*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
          of.found |= of.caller >= begin && of.caller < begin + info->dlpi_phdr[i].p_memsz;
        }
        return 1;
      },
      &look);
  return look.found;
}
inline void* take_memory(std::size_t bytes, const void* caller) noexcept {
  if (memory_left >= 0 && !of_software_gpu(caller)) {
    if (memory_left == 0) {
      ++memory_refused;
      return nullptr;
    }
    --memory_left;
  }
  return std::malloc(bytes);
}
inline void* take_or_throw(std::size_t bytes, const void* caller) {
  if (void* at = take_memory(bytes, caller)) return at;
  throw std::bad_alloc();
}

}  // namespace firn::test

void* operator new(std::size_t bytes) {
  return firn::test::take_or_throw(bytes, __builtin_return_address(0));
}
void* operator new[](std::size_t bytes) {
  return firn::test::take_or_throw(bytes, __builtin_return_address(0));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return firn::test::take_memory(bytes, __builtin_return_address(0));
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return firn::test::take_memory(bytes, __builtin_return_address(0));
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete[](void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t) noexcept { std::free(at); }
