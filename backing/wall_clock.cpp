// The wall clock: CLOCK_MONOTONIC, and one condition variable that everything waits on.
#include <chrono>
#include <mutex>

#include "firn/clock.h"
#include "firn/ranked_mutex.h"

namespace firn {

namespace {
class WallClock final : public Clock {
 public:
  uint64_t now_ns() override {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                     std::chrono::steady_clock::now().time_since_epoch())
                                     .count());
  }
  void wait(uint64_t ns_max) override {
    none_held("a wait");
    constexpr uint64_t most = 1'000'000'000;  // a lost wake-up costs a second, not a hang
    std::unique_lock lock(mutex_);
    uint64_t seen = notified_;
    changed_.wait_for(lock, std::chrono::nanoseconds(ns_max < most ? ns_max : most),
                      [&] { return notified_ != seen; });
  }
  void notify() override {
    {
      std::lock_guard lock(mutex_);
      ++notified_;
    }
    changed_.notify_all();
  }

 private:
  RankedMutex<Rank::clock> mutex_;
  RankedCondition changed_;
  uint64_t notified_ = 0;
};
}  // namespace

Clock& wall_clock() {
  static WallClock* clock = new WallClock;  // never destroyed: threads outlive main
  return *clock;
}

}  // namespace firn
