#include "allocator/lifetimes/bandwidths.h"

#include <gtest/gtest.h>

using namespace firn::lifetimes;

namespace {
constexpr uint64_t mib = 1 << 20, ms = 1'000'000;
}

TEST(Bandwidths, are_bytes_over_the_time_in_which_there_was_something_to_do) {
  Bandwidths b;
  EXPECT_EQ(b.bytes_s(Channel::store_write), 0);
  uint64_t now = 5 * ms;
  for (int i = 0; i < 10; ++i) {
    b.begin(Channel::store_write, now);      // two that overlap, 64 MiB in 20 ms
    b.begin(Channel::store_write, now + ms);
    b.end(Channel::store_write, 32 * mib, now + 10 * ms);
    b.end(Channel::store_write, 32 * mib, now + 20 * ms);
    now += 500 * ms;                         // nothing to do
  }
  EXPECT_NEAR(b.bytes_s(Channel::store_write), 3200.0 * mib, 1);
  EXPECT_EQ(b.bytes_s(Channel::store_read), 0);
}

TEST(Bandwidths, failures_and_waits_do_not_count) {
  Bandwidths b;
  b.begin(Channel::host_out, 0);
  b.begin(Channel::host_out, 0);
  b.end(Channel::host_out, 0, 100 * ms);     // it waited for something else
  b.end(Channel::host_out, 64 * mib, 110 * ms);
  EXPECT_NEAR(b.bytes_s(Channel::host_out), 6400.0 * mib, 1);
}

TEST(Bandwidths, little_says_nothing) {
  Bandwidths b;
  b.begin(Channel::host_in, 0);
  b.end(Channel::host_in, 2 * mib, 1);
  EXPECT_EQ(b.bytes_s(Channel::host_in), 0);
}

TEST(Bandwidths, are_forgotten_slowly) {
  firn::Throughput way(1000 * ms);
  uint64_t now = 0;
  const auto move = [&](uint64_t took, int times) {
    for (int i = 0; i < times; ++i) {
      way.begin(now);
      way.end(10 * mib, now += took);
    }
  };
  move(10 * ms, 200);   // 1000 MiB/s for 2 s
  EXPECT_NEAR(way.bytes_s(), 1000.0 * mib, 1.0 * mib);
  move(20 * ms, 5);     // half as fast for 0.1 s
  EXPECT_GT(way.bytes_s(), 900.0 * mib);
  move(20 * ms, 200);   // and for 4 s
  EXPECT_NEAR(way.bytes_s(), 500.0 * mib, 15.0 * mib);
}
