// Pauses after errors, and the end after wrong sums.
#include "backing/store/dir_health.h"

#include <gtest/gtest.h>

namespace firn {
namespace {

constexpr uint64_t s = DirHealth::second_ns;

TEST(DirHealth, PausesDoubleUpTo64Seconds) {
  DirHealth health;
  uint64_t now = 5 * s;
  EXPECT_TRUE(health.takes_slots(now));
  for (const uint64_t pause : {1, 2, 4, 8, 16, 32, 64, 64, 64}) {
    EXPECT_TRUE(health.failed(now));
    EXPECT_EQ(health.pause_ns(), pause * s);
    EXPECT_TRUE(health.pauses(now + pause * s - 1));
    EXPECT_FALSE(health.takes_slots(now + pause * s - 1));
    EXPECT_FALSE(health.failed(now + pause * s - 1)) << "of the same outage";
    now += pause * s;
    EXPECT_TRUE(health.takes_slots(now));
    now += s;
  }
  now += DirHealth::pause_most_ns;  // well for long
  EXPECT_TRUE(health.failed(now));
  EXPECT_EQ(health.pause_ns(), s);
  EXPECT_FALSE(health.distrusted());
}

TEST(DirHealth, TwoWrongSumsAreTheEnd) {
  DirHealth health;
  EXPECT_FALSE(health.wrong());
  EXPECT_TRUE(health.takes_slots(0));
  EXPECT_TRUE(health.wrong());
  EXPECT_FALSE(health.wrong()) << "told once";
  EXPECT_FALSE(health.takes_slots(UINT64_MAX));
  EXPECT_TRUE(health.distrusted());
  EXPECT_FALSE(health.failed(0)) << "there is nothing to pause";
  EXPECT_FALSE(health.pauses(0));
}

TEST(DirHealth, TenHealedWithinTenMinutesAreTheEnd) {
  DirHealth rare;
  for (uint64_t i = 0; i < 100; ++i) EXPECT_FALSE(rare.healed(i * 70 * s));  // ten in 630 s
  EXPECT_TRUE(rare.takes_slots(7000 * s));
  DirHealth often;
  for (uint64_t i = 0; i < 9; ++i) EXPECT_FALSE(often.healed(i * 66 * s));
  EXPECT_TRUE(often.healed(9 * 66 * s));
  EXPECT_FALSE(often.healed(600 * s));
  EXPECT_FALSE(often.takes_slots(UINT64_MAX));
  DirHealth mixed;  // the two are counted apart
  EXPECT_FALSE(mixed.wrong());
  for (uint64_t i = 0; i < 9; ++i) EXPECT_FALSE(mixed.healed(0));
  EXPECT_TRUE(mixed.takes_slots(0));
}

}  // namespace
}  // namespace firn
