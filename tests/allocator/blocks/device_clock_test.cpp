// The program's time on the device, on the software GPU's virtual clock.
#include "allocator/blocks/device_clock.h"

#include <gtest/gtest.h>

#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr uint64_t ms = 1'000'000;

class DeviceClockTest : public testing::Test {
 protected:
  DeviceClockTest()
      : sim_({}), guard_(sim_.driver(), sim_.context(0)), health_(sim_.driver(), 0),
        streams_(sim_.driver(), health_) {
    program_ = streams_.see(stream_ = sim_.make_stream(0));
    copies_ = streams_.see(copy_stream_ = sim_.make_stream(0));
  }
  ~DeviceClockTest() override { sim_.synchronize(); }

  void work(uint64_t ns) { ASSERT_EQ(sim_.gpu().busy(stream_, ns), 0); }
  void copy(uint64_t ns) { ASSERT_EQ(sim_.gpu().busy(copy_stream_, ns), 0); }
  void mark(uint64_t position) { clock_.mark(static_cast<unsigned>(program_), position); }
  /// Time goes on, in steps in which somebody looks.
  void pass(uint64_t ns) {
    const uint64_t end = sim_.clock().now_ns() + ns;
    while (sim_.clock().now_ns() < end) {
      sim_.clock().wait(std::min<uint64_t>(end - sim_.clock().now_ns(), ms / 10));
      look();
    }
  }
  void look() {
    streams_.poll();
    clock_.poll(sim_.clock().now_ns(), [this](uint64_t position, uint64_t device_ns) {
      over_.push_back({position, device_ns});
    });
  }
  uint64_t between(size_t a, size_t b) { return over_.at(b).second - over_.at(a).second; }

  Simulation sim_;
  Driver::ContextGuard guard_;
  DeviceHealth health_;
  Streams streams_;
  DeviceClock clock_{streams_};
  CUstream stream_ = nullptr, copy_stream_ = nullptr;
  int program_ = 0, copies_ = 0;
  std::vector<std::pair<uint64_t, uint64_t>> over_;
};

TEST_F(DeviceClockTest, counts_work_in_a_row) {
  mark(1);
  work(3 * ms);
  mark(2);
  work(5 * ms);
  mark(3);
  pass(20 * ms);
  ASSERT_EQ(over_.size(), 3u);
  EXPECT_EQ(over_[2].first, 3u);
  EXPECT_NEAR(static_cast<double>(between(0, 1)), 3e6, 2e5);
  EXPECT_NEAR(static_cast<double>(between(1, 2)), 5e6, 2e5);
}

TEST_F(DeviceClockTest, a_stall_is_not_counted_nor_work_that_goes_on_in_it_lost) {
  mark(1);
  work(3 * ms);
  mark(2);          // the stall begins; 3 ms of work are ahead of it
  pass(10 * ms);
  clock_.stalled(sim_.clock().now_ns());
  work(2 * ms);
  mark(3);
  pass(10 * ms);
  ASSERT_EQ(over_.size(), 3u);
  EXPECT_NEAR(static_cast<double>(between(0, 2)), 5e6, 3e5);
}

TEST_F(DeviceClockTest, a_stall_shorter_than_the_work_ahead_costs_nothing) {
  mark(1);
  work(8 * ms);
  mark(2);
  pass(3 * ms);
  clock_.stalled(sim_.clock().now_ns());
  work(2 * ms);
  mark(3);
  pass(20 * ms);
  ASSERT_EQ(over_.size(), 3u);
  EXPECT_NEAR(static_cast<double>(between(0, 2)), 10e6, 3e5);
}

TEST_F(DeviceClockTest, waiting_for_a_copy_on_the_device_is_not_counted) {
  mark(1);
  work(2 * ms);
  mark(2);
  copy(9 * ms);
  const Use arrival = streams_.now(static_cast<unsigned>(copies_));
  ASSERT_TRUE(streams_.close(arrival));
  ASSERT_TRUE(streams_.order(static_cast<unsigned>(program_), arrival));
  clock_.waits_for(arrival);
  work(4 * ms);
  mark(3);
  pass(30 * ms);
  ASSERT_EQ(over_.size(), 3u);
  EXPECT_NEAR(static_cast<double>(between(0, 2)), 6e6, 3e5);
}

}  // namespace
