// When to end: at a moment, or once somebody says so. Owns: nothing else. Locks: none; any thread.
#pragma once

#include <atomic>
#include <chrono>

namespace firn::order {

class Stop {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Stop(Clock::time_point end) : end_(end) {}

  bool now() const {
    return said_.load(std::memory_order_relaxed) || Clock::now() >= end_;
  }
  void say() { said_.store(true, std::memory_order_relaxed); }
  Clock::time_point end() const { return end_; }

 private:
  const Clock::time_point end_;
  std::atomic<bool> said_{false};
};

}  // namespace firn::order
