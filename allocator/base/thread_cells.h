// Numbers for threads, so that each can count in a cell of its own, without locked instructions. A
// thread has its number until it ends; another may have it after that, and goes on from what it
// finds. Threads beyond `cells_own` at a time share the last cell.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace firn {

inline constexpr unsigned cells = 8, cells_own = cells - 1;

namespace thread_cells {
// What threads with a number of their own are known by: the thread's pointer, which ends in zeros,
// and in them the number. An entry is believed by the thread that it names, and no other. Asking
// for a thread_local variable of a library that was loaded late takes longer.
inline constexpr unsigned known_bits = 6;
extern std::array<std::atomic<uintptr_t>, 1u << known_bits> known;
inline std::atomic<uintptr_t>& known_at(uintptr_t thread) {
  return known[static_cast<uint64_t>(thread >> 4) * 0x9E3779B97F4A7C15ull >> (64 - known_bits)];
}
unsigned find(uintptr_t thread);
}  // namespace thread_cells

/// A count of the thread's that has a cell of its own, for nobody else to look at.
struct alignas(64) ThreadCount {
  int count = 0;
};

/// The calling thread's, below `cells`. Takes no lock.
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
/// All numbers that were ever given are below.
unsigned thread_cells_used();

}  // namespace firn
