#include "allocator/base/thread_cells.h"

#include <pthread.h>

namespace firn {

namespace thread_cells {
constinit std::array<std::atomic<uintptr_t>, 1u << known_bits> known = {};
}  // namespace thread_cells

namespace {
constexpr unsigned shared_cell = cells - 1, none = cells;

// No lock: a fork may come at any moment, and the child's threads end, too. Whoever takes a flag
// knows what was counted before it was given back.
constinit std::atomic<bool> taken[cells_own] = {};
constinit std::atomic<unsigned> used{0};
constinit thread_local unsigned mine = none;

/// In the child of a fork: threads are gone, and others may come with the same pointers. (Their
/// numbers are nobody's from here.)
void forget_threads() {
  for (auto& each : thread_cells::known) each.store(0, std::memory_order_relaxed);
}

// Without being told of forks no table: a thread's own variable tells. (Nor before this is made.)
const bool told_of_forks = pthread_atfork(nullptr, nullptr, forget_threads) == 0;

/// Gives the number back when the thread ends; what the thread still counts then is shared.
struct Leave {
  unsigned cell;
  uintptr_t thread;
  ~Leave() {
    mine = shared_cell;
    uintptr_t own = thread + cell;
    if (thread)
      thread_cells::known_at(thread).compare_exchange_strong(own, 0, std::memory_order_relaxed);
    if (cell != shared_cell) taken[cell].store(false, std::memory_order_release);
  }
};

void take_cell(uintptr_t thread) {
  unsigned cell = 0;
  while (cell < cells_own && taken[cell].exchange(true, std::memory_order_acquire)) ++cell;
  unsigned before = used.load(std::memory_order_relaxed);
  while (before < cell + 1 &&
         !used.compare_exchange_weak(before, cell + 1, std::memory_order_relaxed)) {
  }
  mine = cell;
  thread_local const Leave leave{cell, thread};
}
}  // namespace

/// `thread`: its pointer, or 0 where there is none to be had.
unsigned thread_cells::find(uintptr_t thread) {
  if (mine == none) take_cell(thread);
  // (Others with the same place in the table may have taken it; whoever ends, leaves it.)
  if (told_of_forks && thread && mine != shared_cell)
    known_at(thread).store(thread + mine, std::memory_order_relaxed);
  return mine;
}

unsigned thread_cells_used() { return used.load(std::memory_order_relaxed); }

}  // namespace firn
