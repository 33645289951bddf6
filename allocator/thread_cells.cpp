#include "allocator/thread_cells.h"

#include <atomic>

namespace firn {

namespace {
constexpr unsigned shared_cell = cells - 1, none = cells;

// No lock: a fork may come at any moment, and the child's threads end, too. Whoever takes a flag knows
// what was counted before it was given back.
constinit std::atomic<bool> taken[cells_own] = {};
constinit std::atomic<unsigned> used{0};
constinit thread_local unsigned mine = none;

/// Gives the number back when the thread ends; what the thread still counts then is shared.
struct Leave {
  unsigned cell;
  ~Leave() {
    mine = shared_cell;
    if (cell != shared_cell) taken[cell].store(false, std::memory_order_release);
  }
};

unsigned take_cell() {
  unsigned cell = 0;
  while (cell < cells_own && taken[cell].exchange(true, std::memory_order_acquire)) ++cell;
  unsigned before = used.load(std::memory_order_relaxed);
  while (before < cell + 1 &&
         !used.compare_exchange_weak(before, cell + 1, std::memory_order_relaxed)) {
  }
  mine = cell;
  thread_local const Leave leave{cell};
  return cell;
}
}  // namespace

unsigned thread_cell() {
  const unsigned cell = mine;
  return cell != none ? cell : take_cell();
}

unsigned thread_cells_used() { return used.load(std::memory_order_relaxed); }

}  // namespace firn
