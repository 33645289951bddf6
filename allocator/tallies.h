// Counters in the shape of torch's memory statistics, updated without a lock: totals only grow, the
// present value is their difference, peaks are raised where a total grew.
#pragma once

#include <atomic>
#include <cstdint>

#include "allocator/engine.h"

namespace firn {

class AtomicTally {
 public:
  void add(int64_t amount) {
    int64_t up = up_.fetch_add(amount, std::memory_order_relaxed) + amount;
    raise(up - down_.load(std::memory_order_relaxed));
  }
  void remove(int64_t amount) { down_.fetch_add(amount, std::memory_order_relaxed); }
  int64_t current() const {
    return up_.load(std::memory_order_relaxed) - down_.load(std::memory_order_relaxed);
  }
  Tally get() const {
    Tally tally;
    int64_t up = up_.load(std::memory_order_relaxed), down = down_.load(std::memory_order_relaxed);
    tally.current = up - down;
    tally.peak = peak_.load(std::memory_order_relaxed);
    tally.allocated = up - up_base_;
    tally.freed = down - down_base_;
    return tally;
  }
  void reset_peak() { peak_.store(current(), std::memory_order_relaxed); }
  void reset_totals() {
    up_base_ = up_.load(std::memory_order_relaxed);
    down_base_ = down_.load(std::memory_order_relaxed);
  }

 private:
  void raise(int64_t value) {
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (value > peak &&
           !peak_.compare_exchange_weak(peak, value, std::memory_order_relaxed)) {
    }
  }
  std::atomic<int64_t> up_{0}, down_{0}, peak_{0};
  int64_t up_base_ = 0, down_base_ = 0;  // under the engine's lock
};

/// One pool's counters; "all" is the sum of small and large except for its peaks, kept apart.
struct PoolCounters {
  AtomicTally allocation, allocated_bytes, requested_bytes;
};

/// What the engine counts on its hot paths: pools small (0) and large (1), and both together (2).
struct HotCounters {
  PoolCounters pool[2];
  AtomicTally all_allocated_bytes;
  void allocated(bool large, size_t bytes, size_t requested) {
    PoolCounters& p = pool[large];
    p.allocation.add(1);
    p.allocated_bytes.add(static_cast<int64_t>(bytes));
    p.requested_bytes.add(static_cast<int64_t>(requested));
    all_allocated_bytes.add(static_cast<int64_t>(bytes));
  }
  void freed(bool large, size_t bytes, size_t requested) {
    PoolCounters& p = pool[large];
    p.allocation.remove(1);
    p.allocated_bytes.remove(static_cast<int64_t>(bytes));
    p.requested_bytes.remove(static_cast<int64_t>(requested));
    all_allocated_bytes.remove(static_cast<int64_t>(bytes));
  }
};

}  // namespace firn
