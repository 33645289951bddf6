// Which work has to be over before a block's memory is another's.
#include "allocator/blocks/uses.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/allocator/fake_gpu.h"

using namespace firn;
using namespace firn::test;

namespace {

class UsesTest : public ::testing::Test {
 protected:
  UsesTest() {
    for (unsigned i = 0; i < 4; ++i) {
      stream_[i] = reinterpret_cast<CUstream>(uintptr_t{i + 1} << 8);
      EXPECT_EQ(streams_.see(stream_[i]), static_cast<int>(i));
    }
  }
  /// Work on the stream, not noted of the block yet.
  Use work(unsigned stream) {
    gpu_.give(stream_[stream]);
    return streams_.now(stream);
  }
  void used_last(Use use) { block_.use.store(use.bits); }

  FakeGpu gpu_;
  DeviceHealth health_{gpu_.driver(), 0};
  Streams streams_{gpu_.driver(), health_};
  Uses uses_{streams_};
  Block block_;
  CUstream stream_[4];
};

TEST_F(UsesTest, all_are_over_when_the_last_of_them_is_and_then_forgotten) {
  used_last(work(0));
  uses_.add(block_, work(1));
  block_.arrival = work(2);
  EXPECT_TRUE(block_.word.load() & word::many_uses);
  EXPECT_FALSE(uses_.over(block_));
  EXPECT_TRUE(uses_.close(block_));
  for (unsigned stream = 0; stream < 3; ++stream) {
    gpu_.finish(stream_[stream]);
    EXPECT_TRUE(streams_.poll());
    EXPECT_EQ(uses_.over(block_), stream == 2) << stream;
  }
  EXPECT_TRUE(block_.more_uses.empty());
  EXPECT_FALSE(block_.word.load() & word::many_uses);
}

TEST_F(UsesTest, a_block_that_nothing_used_is_over_at_once) {
  EXPECT_TRUE(uses_.over(block_));
  EXPECT_TRUE(uses_.close(block_));
  EXPECT_TRUE(uses_.order(1, block_));
  EXPECT_TRUE(gpu_.waits.empty());
}

TEST_F(UsesTest, a_stream_s_latest_use_stands_for_those_before) {
  const Use first = work(1);
  ASSERT_TRUE(streams_.close(first));
  const Use second = work(1);
  for (const auto& [one, other] : {std::pair(second, first), std::pair(first, second)}) {
    block_.more_uses.clear();
    uses_.add(block_, one);
    uses_.add(block_, other);
    ASSERT_EQ(block_.more_uses.size(), 1u);
    EXPECT_EQ(block_.more_uses.front().bits, second.bits);
  }
  gpu_.finish(stream_[1], 1);
  (void)streams_.poll();
  EXPECT_FALSE(uses_.over(block_));
}

TEST_F(UsesTest, a_use_that_is_over_is_not_noted) {
  const Use use = work(1);
  ASSERT_TRUE(streams_.close(use));
  gpu_.finish(stream_[1]);
  ASSERT_TRUE(streams_.poll());
  uses_.add(block_, use);
  uses_.add(block_, Use{});
  EXPECT_TRUE(block_.more_uses.empty());
}

TEST_F(UsesTest, copies_of_other_pieces_hold_up_nothing_but_a_program_s_use_does) {
  uses_.add(block_, work(3));
  EXPECT_TRUE(uses_.over_but_on(block_, 3));
  EXPECT_FALSE(uses_.over(block_));
  uses_.add(block_, work(1));
  EXPECT_FALSE(uses_.over_but_on(block_, 3));
  block_.more_uses.clear();
  used_last(work(0));
  EXPECT_FALSE(uses_.over_but_on(block_, 3));
  used_last({});
  block_.arrival = work(2);
  EXPECT_FALSE(uses_.over_but_on(block_, 3));
  block_.arrival = {};
  EXPECT_TRUE(uses_.over_but_on(block_, 3));
}

TEST_F(UsesTest, one_refused_event_leaves_the_others_closed_and_is_asked_for_again) {
  uses_.add(block_, work(1));
  used_last(work(0));
  block_.arrival = work(2);
  gpu_.refusals["cuEventRecord"] = 1;  // of the first that is asked for
  EXPECT_FALSE(uses_.close(block_));
  for (CUstream stream : stream_) gpu_.finish(stream);
  (void)streams_.poll();
  EXPECT_FALSE(streams_.over(block_.more_uses.front()));
  EXPECT_TRUE(streams_.over(Use{block_.use.load()}));
  EXPECT_TRUE(streams_.over(block_.arrival));
  EXPECT_TRUE(uses_.close(block_));
  (void)streams_.poll();
  EXPECT_TRUE(uses_.over(block_));
}

TEST_F(UsesTest, later_work_waits_for_every_use_of_other_streams) {
  used_last(work(0));
  uses_.add(block_, work(1));
  uses_.add(block_, work(2));
  ASSERT_TRUE(uses_.order(2, block_));
  ASSERT_EQ(gpu_.waits.size(), 2u);
  for (const auto& [stream, event] : gpu_.waits) EXPECT_EQ(stream, stream_[2]);
}

TEST_F(UsesTest, aside_is_in_use_on_such_a_stream_until_that_is_over) {
  uses_.add(block_, work(1));
  EXPECT_FALSE(uses_.aside(block_));
  streams_.set_aside(1);
  EXPECT_TRUE(uses_.aside(block_));
  ASSERT_TRUE(uses_.close(block_));
  gpu_.finish(stream_[1]);
  (void)streams_.poll();
  EXPECT_FALSE(uses_.aside(block_));
  used_last(work(1));
  EXPECT_TRUE(uses_.aside(block_));
}

}  // namespace
