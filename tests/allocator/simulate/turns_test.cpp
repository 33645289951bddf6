// Threads that take turns: who runs when, and when time passes.
#include "allocator/simulate/turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace firn::simulate {
namespace {

/// Goes to the next of the times at which something happens.
class ListedClock final : public Clock {
 public:
  explicit ListedClock(std::vector<uint64_t> events) : events_(std::move(events)) {}
  uint64_t now_ns() override { return now_; }
  void wait(uint64_t ns_max) override {
    ++waits;
    const auto next = std::upper_bound(events_.begin(), events_.end(), now_);
    const uint64_t limit = ns_max > UINT64_MAX - now_ ? UINT64_MAX : now_ + ns_max;
    now_ = std::min(next == events_.end() ? limit : *next, limit);
  }
  void notify() override {}
  int waits = 0;

 private:
  const std::vector<uint64_t> events_;
  uint64_t now_ = 0;
};

TEST(Turns, with_one_thread_a_wait_is_the_clock_s) {
  ListedClock clock({10, 20});
  Turns turns(clock);
  turns.wait(UINT64_MAX);
  EXPECT_EQ(clock.now_ns(), 10u);
  turns.wait(5);
  EXPECT_EQ(clock.now_ns(), 15u);
  EXPECT_EQ(clock.waits, 2);
  EXPECT_TRUE(turns.alone());
}

TEST(Turns, time_passes_when_all_threads_wait_and_each_sees_what_happened) {
  ListedClock clock({10, 20, 30});
  Turns turns(clock);
  std::string told;
  const auto tell = [&](char who) { told += who + std::to_string(clock.now_ns()) + " "; };
  turns.start([&] {
    for (int i = 0; i < 2; ++i) {
      tell('b');
      turns.wait(UINT64_MAX);
    }
    tell('b');
  });
  for (int i = 0; i < 3; ++i) {
    tell('a');
    turns.wait(UINT64_MAX);
  }
  turns.await([&] { return turns.alone(); });
  // The last one to wait lets time pass, and goes on; the other one is next when it waits again.
  EXPECT_EQ(told, "a0 b0 b10 a10 a20 b20 ");
}

TEST(Turns, a_sleeper_wakes_at_its_time_and_a_condition_when_it_is_true) {
  ListedClock clock({});
  Turns turns(clock);
  std::vector<uint64_t> woke;
  bool done = false;
  turns.start([&] {
    turns.sleep(7);
    woke.push_back(clock.now_ns());
    turns.sleep(3);
    woke.push_back(clock.now_ns());
    done = true;
  });
  turns.await([&] { return done; });
  EXPECT_EQ(woke, (std::vector<uint64_t>{7, 10}));
  turns.await([&] { return turns.alone(); });
}

}  // namespace
}  // namespace firn::simulate
