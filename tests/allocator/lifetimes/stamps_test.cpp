// Times of positions: interpolated between stamps, and a period's, of which as little as can be is.
#include "allocator/lifetimes/stamps.h"

#include <gtest/gtest.h>

namespace firn::lifetimes {
namespace {

TEST(Stamps, too_little_is_known_before_the_second) {
  Stamps stamps(8);
  uint64_t ns = 0;
  EXPECT_FALSE(stamps.between(0, 1, ns));
  EXPECT_FALSE(stamps.last(1, ns));
  stamps.add(4, 100);
  EXPECT_FALSE(stamps.between(0, 1, ns));
  EXPECT_FALSE(stamps.last(1, ns));
}

TEST(Stamps, times_between_two_are_interpolated_and_go_on_at_the_pace_of_all) {
  Stamps stamps(8);
  stamps.add(10, 100);
  stamps.add(20, 200);
  stamps.add(30, 600);
  uint64_t ns = 0;
  ASSERT_TRUE(stamps.between(15, 25, ns));
  EXPECT_EQ(ns, 250u);
  ASSERT_TRUE(stamps.between(30, 40, ns));
  EXPECT_EQ(ns, 250u);
}

/// Of ten positions the seventh takes 1,000 ns, the others 10.
TEST(Stamps, a_period_is_measured_where_the_least_is_interpolated) {
  Stamps stamps(64);
  const auto ns_at = [](uint64_t position) { return position * 10 + (position + 3) / 10 * 990; };
  for (const uint64_t position : {5, 8, 18, 19}) stamps.add(position, ns_at(position));
  uint64_t ns = 0;
  ASSERT_TRUE(stamps.last(10, ns));
  EXPECT_EQ(ns, 1'090u);  // from 8 to 18; 9 lies within 8 and 18
  EXPECT_FALSE(stamps.last(15, ns)) << "longer than what is known";
}

TEST(Stamps, what_is_older_than_an_eighth_of_the_period_does_not_count) {
  Stamps stamps(64);
  for (const uint64_t position : {0, 40, 80}) stamps.add(position, position);
  stamps.add(120, 1'000);
  stamps.add(165, 10'000);
  uint64_t ns = 0;
  ASSERT_TRUE(stamps.last(80, ns));  // up to 165, though 120 - 80 is a stamp
  EXPECT_GT(ns, 9'000u);
}

}  // namespace
}  // namespace firn::lifetimes
