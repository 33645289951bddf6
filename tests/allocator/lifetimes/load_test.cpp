// What part of the time a channel was busy.
#include "allocator/lifetimes/load.h"

#include <gtest/gtest.h>

namespace firn::lifetimes {
namespace {

TEST(Load, NothingIsKnownAtFirst) { EXPECT_EQ(Load().part(), 0); }

TEST(Load, CountsTheTimeBetweenWords) {
  Load load;
  load.tell(1000, true);
  load.tell(1300, false);
  load.tell(2000, true);
  EXPECT_DOUBLE_EQ(load.part(), .3);
}

TEST(Load, TheSameWordTwiceChangesNothing) {
  Load load;
  load.tell(1000, true);
  load.tell(1100, true);
  load.tell(1100, true);
  load.tell(1400, false);
  load.tell(1500, false);
  EXPECT_DOUBLE_EQ(load.part(), .8);
}

TEST(Load, TimeThatGoesBackIsNoTime) {
  Load load;
  load.tell(1000, true);
  load.tell(900, true);
  load.tell(1100, false);
  EXPECT_DOUBLE_EQ(load.part(), 1);
}

TEST(Load, ForgetsWhatIsTwoPeriodsAgo) {
  Load load;
  load.tell(1, true);
  load.tell(1001, false);  // busy
  load.period_over();
  load.tell(2001, false);  // idle
  EXPECT_DOUBLE_EQ(load.part(), .5);
  load.period_over();
  EXPECT_DOUBLE_EQ(load.part(), 0);
  load.tell(3001, true);
  load.tell(4001, true);
  EXPECT_DOUBLE_EQ(load.part(), 1. / 3);
}

}  // namespace
}  // namespace firn::lifetimes
