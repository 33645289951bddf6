// operator new of the whole program, libraries included, from which a thread is given so much and no
// more. In one file of a program.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace firn::test {

inline thread_local long memory_left = -1;  // so many more are given to this thread; negative: all

inline void* take_memory(std::size_t bytes) noexcept {
  if (memory_left == 0) return nullptr;
  if (memory_left > 0) --memory_left;
  return std::malloc(bytes);
}
inline void* take_or_throw(std::size_t bytes) {
  if (void* at = take_memory(bytes)) return at;
  throw std::bad_alloc();
}

}  // namespace firn::test

void* operator new(std::size_t bytes) { return firn::test::take_or_throw(bytes); }
void* operator new[](std::size_t bytes) { return firn::test::take_or_throw(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return firn::test::take_memory(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return firn::test::take_memory(bytes);
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete[](void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t) noexcept { std::free(at); }
