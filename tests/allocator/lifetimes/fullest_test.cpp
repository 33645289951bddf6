#include "allocator/lifetimes/fullest.h"

#include <gtest/gtest.h>

using firn::lifetimes::Fullest;

namespace {

constexpr uint64_t period = 10;

/// A period in which the gaps are the most when the device is the emptiest.
uint64_t play(Fullest& fullest, uint64_t begin, uint64_t most, uint64_t gaps_then) {
  for (uint64_t i = 0; i < period; ++i) {
    const uint64_t away = i < 5 ? i : period - i;  // 0 at its beginning, 5 at its middle
    fullest.note(begin + i, period, most - away * 8, gaps_then + away * 3);
  }
  return begin + period;
}

TEST(Fullest, what_is_now_where_nothing_was_seen) { EXPECT_EQ(Fullest().gaps(7), 7u); }

TEST(Fullest, of_the_fullest_moment) {
  Fullest fullest;
  play(fullest, 100, 1000, 2);
  EXPECT_EQ(fullest.gaps(50), 2u);
}

TEST(Fullest, among_equally_full_moments_the_least) {
  Fullest fullest;
  for (uint64_t gaps : {9, 4, 6}) fullest.note(100, period, 1000, gaps);
  EXPECT_EQ(fullest.gaps(50), 4u);
}

TEST(Fullest, the_last_period_counts_until_this_one_is_as_full) {
  Fullest fullest;
  const uint64_t now = play(fullest, 100, 1000, 2);
  fullest.note(now, period, 600, 40);  // this period's first moments
  fullest.note(now + 1, period, 700, 30);
  EXPECT_EQ(fullest.gaps(50), 2u);
  fullest.note(now + 2, period, 1000, 5);
  EXPECT_EQ(fullest.gaps(50), 2u);
  fullest.note(now + 3, period, 1001, 5);
  EXPECT_EQ(fullest.gaps(50), 5u);
}

TEST(Fullest, periods_before_the_last_are_forgotten) {
  Fullest fullest;
  uint64_t now = play(fullest, 100, 1000, 2);
  for (int i = 0; i < 2; ++i) now = play(fullest, now, 500, 11);
  EXPECT_EQ(fullest.gaps(50), 11u);
}

}  // namespace
