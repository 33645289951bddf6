// Numbers for threads, so that each can count in a cell of its own, without locked instructions. A
// thread keeps its number until it ends; a later thread may get it, and goes on from the counts it
// finds. Threads beyond `cells_own` at a time share the last cell.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace firn {

inline constexpr unsigned cells = 8, cells_own = cells - 1;

namespace thread_cells {
// Cache of the numbers of threads that have their own: a word is a thread's pointer, with the
// number in its low zero bits. Only the thread that a word names trusts it. Reading a
// thread_local variable of a library that was loaded late takes longer.
inline constexpr unsigned known_bits = 6;
extern std::array<std::atomic<uintptr_t>, 1u << known_bits> known;
inline std::atomic<uintptr_t>& known_at(uintptr_t thread) {
  return known[static_cast<uint64_t>(thread >> 4) * 0x9E3779B97F4A7C15ull >> (64 - known_bits)];
}
unsigned find(uintptr_t thread);
}  // namespace thread_cells

/// A count in the cell of one thread, private to that thread.
struct alignas(64) ThreadCount {
  int count = 0;
};

/// The calling thread's number, below `cells`. Takes no lock.
inline unsigned thread_cell() {
#if __has_builtin(__builtin_thread_pointer)
  const auto thread = reinterpret_cast<uintptr_t>(__builtin_thread_pointer());
  const uintptr_t cell =
      thread_cells::known_at(thread).load(std::memory_order_relaxed) - thread;
  return cell < cells ? static_cast<unsigned>(cell) : thread_cells::find(thread);
#else
  return thread_cells::find(0);
#endif
}
/// All numbers ever given are below this.
unsigned thread_cells_used();

}  // namespace firn
