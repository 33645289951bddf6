#include "allocator/base/thread_cells.h"

#include <pthread.h>

namespace firn {

namespace thread_cells {
constinit std::array<std::atomic<uintptr_t>, 1u << known_bits> known = {};
}  // namespace thread_cells

namespace {
constexpr unsigned shared_cell = cells - 1, none = cells;

// No lock: a fork may come at any moment, and the child's threads end, too. Taking a flag makes
// visible what was counted before it was given back.
constinit std::atomic<bool> taken[cells_own] = {};
constinit std::atomic<unsigned> used{0};
constinit thread_local unsigned mine = none;

/// In the child of a fork: the threads are gone, and new ones may get the same pointers. (The
/// numbers of the old ones stay unused.)
void forget_threads() {
  for (auto& each : thread_cells::known) each.store(0, std::memory_order_relaxed);
}

// The table serves only once a fork handler is installed; else a thread's own variable does.
const bool told_of_forks = pthread_atfork(nullptr, nullptr, forget_threads) == 0;

/// Gives the number back when the thread ends; the thread counts in the shared cell after that.
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

/// `thread`: the thread's pointer, or 0 where none is available.
unsigned thread_cells::find(uintptr_t thread) {
  if (mine == none) take_cell(thread);
  // (Threads with the same word overwrite it; one that ends clears only its own.)
  if (told_of_forks && thread && mine != shared_cell)
    known_at(thread).store(thread + mine, std::memory_order_relaxed);
  return mine;
}

unsigned thread_cells_used() { return used.load(std::memory_order_relaxed); }

}  // namespace firn
