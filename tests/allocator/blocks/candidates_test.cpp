// Which blocks a walk gives, in which order, and when it ends.
#include "allocator/blocks/candidates.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>

#include "tests/allocator/blocks/block_word_inspector.h"
#include "tests/allocator/fake_gpu.h"

using namespace firn;
using namespace firn::test;

namespace {

/// Blocks are named A, B, ..., in the order in which they are added.
class CandidatesTest : public ::testing::Test {
 protected:
  static constexpr uint64_t now = 1000;
  static constexpr uint64_t on_device = word::with_state(word::proven, State::resident);

  Block& add(uint64_t age, uint32_t pages = 16, uint64_t word = on_device) {
    Block& block = blocks_.emplace_back();
    block.age.store(age);
    block.pages = block.mapped = pages;
    put(block, word);
    live_.push_back(&block);
    return block;
  }
  static void put(Block& block, uint64_t word) { BlockWordInspector::put(block.word, word); }
  /// Bytes of it are valid in host memory.
  static void copy(Block& block) {
    put(block, on_device | word::copies);
    block.pieces.resize(1);
    block.pieces[0].host_valid = true;
  }
  /// In use on a stream that nobody waits for, until finish().
  void set_aside(Block& block) {
    const int stream = streams_.see(stream_);
    gpu_.give(stream_);
    block.use.store(streams_.now(static_cast<unsigned>(stream)).bits);
    ASSERT_TRUE(uses_.close(block));
    streams_.set_aside(static_cast<unsigned>(stream));
    ASSERT_TRUE(uses_.aside(block));
  }
  Candidates walk(const Candidates::Rules& rules) { return {order_, live_, uses_, rules}; }
  /// The next `count` as letters; "." where there is none, which is the end.
  std::string next(Candidates& walk, int count = 1, bool stay = true) {
    std::string names;
    while (count-- > 0) {
      Block* block = walk.next(now);
      if (!block) return names + ".";
      size_t at = 0;
      while (live_[at] != block) ++at;
      names += static_cast<char>('A' + at);
      if (stay)
        walk.stays();
      else
        put(*block, word::with_state(word::proven, State::spilling));
    }
    return names;
  }
  std::string all(const Candidates::Rules& rules) {
    Candidates candidates = walk(rules);
    return next(candidates, 100);
  }

  FakeGpu gpu_;
  DeviceHealth health_{gpu_.driver(), 0};
  Streams streams_{gpu_.driver(), health_};
  Uses uses_{streams_};
  CUstream stream_ = reinterpret_cast<CUstream>(uintptr_t{1} << 8);
  std::deque<Block> blocks_;
  std::vector<Block*> live_;
  AgeOrder order_;
};

constexpr auto by_age = AgeOrder::By::age;

TEST_F(CandidatesTest, the_coldest_comes_first) {
  add(500), add(100), add(900), add(300);
  EXPECT_EQ(all({}), "BDAC.");
  EXPECT_EQ(all({.by = by_age}), "BDAC.");
}

TEST_F(CandidatesTest, size_and_valid_copies_weigh_where_it_is_not_age_alone) {
  add(400, 16);
  add(500, 4096);        // larger
  copy(add(450, 16));    // valid elsewhere
  EXPECT_EQ(all({}), "CBA.");
  EXPECT_EQ(all({.by = by_age}), "ACB.");
}

TEST_F(CandidatesTest, what_may_not_leave_is_not_given) {
  add(1);
  const uint64_t held = on_device + word::hold_one;
  for (const uint64_t word : {held, on_device | word::pinned, on_device | word::freed,
                              on_device | word::placed, on_device & ~word::proven,
                              word::with_state(word::proven, State::spilling),
                              word::with_state(word::proven, State::faulting)})
    add(2, 16, word);
  add(3, 16, word::with_state(word::proven, State::hosted));  // a part is on the device
  add(4, 16, word::with_state(word::proven, State::spilled)).mapped = 0;
  EXPECT_EQ(all({}), "AI.");
}

TEST_F(CandidatesTest, what_was_used_since_it_was_ranked_is_not_given) {
  add(1), add(2), add(3), add(4);
  Candidates once = walk({});
  EXPECT_EQ(next(once), "A");
  live_[1]->age.store(990);                      // touched
  put(*live_[2], on_device + word::hold_one);  // held
  EXPECT_EQ(next(once, 9), "D.");
}

TEST_F(CandidatesTest, each_is_given_once_or_again_until_more_stayed_than_there_are) {
  add(1), add(2), add(3);
  EXPECT_EQ(all({}), "ABC.");
  EXPECT_EQ(all({.again = true}), "ABCA.");
}

TEST_F(CandidatesTest, a_walk_goes_on_where_the_last_one_ended_or_begins_anew) {
  add(1), add(2), add(3);
  Candidates first = walk({.again = true});
  EXPECT_EQ(next(first), "A");
  Candidates second = walk({.again = true});
  EXPECT_EQ(next(second, 2), "BC");
  Candidates third = walk({.again = true});
  EXPECT_EQ(next(third), "A");
  EXPECT_EQ(all({}), "ABC.");
}

TEST_F(CandidatesTest, who_leaves_is_not_given_again) {
  add(1), add(2), add(3);
  Candidates again = walk({.again = true});
  EXPECT_EQ(next(again, 9, false), "ABC.");
}

TEST_F(CandidatesTest, what_is_aside_comes_when_everything_else_was_tried) {
  add(1), add(2), add(3);
  set_aside(*live_[0]);
  EXPECT_EQ(all({.aside_last = false}), "ABC.");
  EXPECT_EQ(all({}), "BC.") << "each once: not at all";
  Candidates again = walk({.again = true});
  EXPECT_EQ(next(again, 9, false), "BCA.");
}

TEST_F(CandidatesTest, the_block_that_is_wanted_is_not_given) {
  add(1), add(2), add(3);
  EXPECT_EQ(all({.except = live_[0]}), "BC.");
  // Met twice: everything else was asked between.
  EXPECT_EQ(all({.again = true, .except = live_[1]}), "AC" "A.");
  order_ = {};
  Candidates again = walk({.again = true, .except = live_[1]});
  EXPECT_EQ(next(again, 9, false), "AC.");
}

TEST_F(CandidatesTest, segments_of_small_blocks_can_be_left_out) {
  add(1).segment = 7;
  add(2);
  EXPECT_EQ(all({.segments = false}), "B.");
  EXPECT_EQ(all({}), "AB.");
}

}  // namespace
