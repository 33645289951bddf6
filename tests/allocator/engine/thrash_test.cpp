// Waits made up: what is a storm, what is thrash, and when who waits is asked for.
#include "allocator/engine/thrash.h"

#include <gtest/gtest.h>

#include <vector>

using namespace firn;

namespace {
using Step = Thrash::Step;
constexpr uint64_t ms = 1'000'000, mib = 1u << 20;

/// A program in which each 10 ms some are waited, and something comes back.
struct Program {
  Thrash thrash;
  uint64_t now = 1000 * ms;
  Thrash::Totals totals{.movable_bytes = 100 * mib};
  std::vector<Step> steps;

  void run(unsigned milliseconds, unsigned waited_of_10, uint64_t back_each) {
    for (unsigned i = 0; i < milliseconds / 10; ++i) {
      now += (10 - waited_of_10) * ms;
      const uint64_t begin = now;
      now += waited_of_10 * ms;
      totals.arrived_bytes += back_each;
      totals.faults += back_each > 0;
      if (waited_of_10 == 0) continue;
      const Step step = thrash.waited(begin, now, totals);
      if (step != Step::none) steps.push_back(step);
    }
  }
};
}  // namespace

TEST(Thrash, who_seldom_waits_is_left_alone) {
  Program program;
  program.run(60'000, 4, 10 * mib);
  EXPECT_TRUE(program.steps.empty());
}

TEST(Thrash, what_comes_back_once_is_a_storm) {
  Program program;
  program.run(10'000, 9, mib / 20);  // half of what there is
  program.run(30'000, 1, 0);
  EXPECT_EQ(program.steps, (std::vector{Step::ask, Step::storm, Step::over}));
  // The next one is not said again.
  program.run(10'000, 9, mib / 20);
  EXPECT_EQ(program.steps.size(), 4u);
  EXPECT_EQ(program.steps.back(), Step::ask);
}

/// A program that fills more memory than there is waits for what has to leave: no fault, no storm.
TEST(Thrash, waits_for_room_alone_are_no_storm) {
  Program program;
  program.run(10'000, 9, 0);
  EXPECT_EQ(program.steps, std::vector{Step::ask});
  program.run(1'000, 9, mib / 20);  // the first of it comes back
  EXPECT_EQ(program.steps, (std::vector{Step::ask, Step::storm}));
}

TEST(Thrash, what_comes_back_again_and_again_is_thrash_and_said_once) {
  Program program;
  program.run(20'000, 8, mib);
  EXPECT_EQ(program.steps, (std::vector{Step::ask, Step::storm, Step::thrash}));
  EXPECT_FALSE(program.thrash.asking());
  const Thrash::Stretch stretch = program.thrash.stretch(program.totals);
  EXPECT_NEAR(stretch.part, .8, .05);
  EXPECT_GE(stretch.rounds, 2);
  program.run(2'000, 1, 0);
  program.run(20'000, 8, mib);
  EXPECT_EQ(program.steps.size(), 3u);
}

/// An iteration waits in its backward half only.
TEST(Thrash, parts_that_wait_less_do_not_end_it) {
  Program program;
  for (int i = 0; i < 20; ++i) {
    program.run(1'000, 9, mib);
    program.run(1'000, 0, 0);
  }
  EXPECT_EQ(program.steps, (std::vector{Step::ask, Step::storm, Step::thrash}));
}

TEST(Thrash, fast_thrash_is_no_storm_first) {
  Program program;
  program.run(20'000, 8, 20 * mib);
  EXPECT_EQ(program.steps, (std::vector{Step::ask, Step::thrash}));
}

TEST(Thrash, threads_that_wait_together_count_once) {
  Thrash thrash;
  Thrash::Totals totals{.movable_bytes = mib};
  for (uint64_t now = 1000 * ms; now < 20'000 * ms; now += 10 * ms)
    for (int thread = 0; thread < 4; ++thread) {
      totals.arrived_bytes += mib;
      EXPECT_EQ(thrash.waited(now - 2 * ms, now, totals), Step::none);
    }
}

/// A long pause, and a wait at its end: the pause was no wait.
TEST(Thrash, a_pause_ends_a_storm) {
  Program program;
  program.run(1'400, 9, mib);
  EXPECT_TRUE(program.thrash.asking());
  program.now += 60'000 * ms;
  program.run(10, 9, mib);
  EXPECT_FALSE(program.thrash.asking());
}

TEST(Waiters, the_first_is_who_waited_longest_in_all) {
  Waiters waiters;
  EXPECT_EQ(waiters.first(), nullptr);
  waiters.add("a", "x.py:1", 1, 10, {.longest_ns = 10, .bytes = 3, .maker = ""});
  waiters.add("b", "x.py:2", 2, 8, {.longest_ns = 6, .bytes = 5, .maker = "m"});
  waiters.add("b", "x.py:2", 1, 4, {.longest_ns = 4, .bytes = 7, .maker = ""});
  ASSERT_NE(waiters.first(), nullptr);
  const auto& [name, waiter] = *waiters.first();
  EXPECT_EQ(name, Waiters::Name("b", "x.py:2"));
  EXPECT_EQ(waiter.times, 3u);
  EXPECT_EQ(waiter.bytes, 5u);
  EXPECT_EQ(waiter.maker, "m");
}
