#include "allocator/thread_cells.h"

#include <algorithm>
#include <atomic>
#include <mutex>

namespace firn {

namespace {
constexpr unsigned shared_cell = cells - 1, none = cells;

constinit std::mutex mutex;
constinit bool taken[cells_own] = {};  // under the mutex, which hands a cell's counts on as well
constinit std::atomic<unsigned> used{0};
constinit thread_local unsigned mine = none;

/// Gives the number back when the thread ends; what the thread still counts then is shared.
struct Leave {
  unsigned cell;
  ~Leave() {
    mine = shared_cell;
    if (cell == shared_cell) return;
    std::lock_guard lock(mutex);
    taken[cell] = false;
  }
};

unsigned take_cell() {
  unsigned cell = shared_cell;
  {
    std::lock_guard lock(mutex);
    if (bool* free = std::find(taken, taken + cells_own, false); free != taken + cells_own) {
      *free = true;
      cell = static_cast<unsigned>(free - taken);
    }
    used.store(std::max(used.load(std::memory_order_relaxed), cell + 1), std::memory_order_relaxed);
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
