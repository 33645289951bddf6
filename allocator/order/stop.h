// Decides when to end: at a moment, or once say() is called; a turn also after so much work. Work
// counts operators and arcs visited, not time, so that a busy machine ends where an idle one does.
// Owns: nothing else. Locks: none; any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

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

/// A stretch of one thread's work.
class Turn {
 public:
  static constexpr uint64_t unlimited = UINT64_MAX;
  /// Keeps references. `all` counts the work of every thread's turns.
  Turn(const Stop& stop, std::atomic<uint64_t>& all, uint64_t most = unlimited)
      : stop_(stop), all_(all), left_(most) {}

  void spend(uint64_t work) {
    all_.fetch_add(work, std::memory_order_relaxed);
    left_ -= std::min(left_, work);
  }
  bool over() const { return left_ == 0 || stop_.now(); }

 private:
  const Stop& stop_;
  std::atomic<uint64_t>& all_;
  uint64_t left_;
};

}  // namespace firn::order
