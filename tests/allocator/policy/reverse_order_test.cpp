#include "allocator/policy/reverse_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "tests/allocator/blocks/block_word_inspector.h"

using namespace firn;

namespace {

constexpr uint64_t step = 16;

bool any(const Block&) { return true; }

TEST(ReverseOrder, falls_from_one_step_below_the_most_until_one_step_above_the_least) {
  ReverseOrder order;
  EXPECT_FALSE(order.falls(100, step));
  EXPECT_FALSE(order.falls(85, step)) << "a temporary was freed";
  EXPECT_FALSE(order.falls(110, step));
  EXPECT_FALSE(order.falls(95, step));
  EXPECT_TRUE(order.falls(94, step));
  EXPECT_TRUE(order.falls(60, step));
  EXPECT_TRUE(order.falls(75, step)) << "a gradient was made";
  EXPECT_TRUE(order.falls(40, step));
  EXPECT_TRUE(order.falls(55, step));
  EXPECT_FALSE(order.falls(56, step)) << "it grows again";
  EXPECT_FALSE(order.falls(41, step));
  EXPECT_TRUE(order.falls(40, step));
}

TEST(ReverseOrder, gives_what_left_last_and_forgets_what_is_there) {
  std::deque<Block> blocks(4);
  ReverseOrder order;
  for (Block& block : blocks) order.left(block);
  EXPECT_EQ(order.last(any), &blocks[3]);
  EXPECT_EQ(order.last(any), &blocks[3]) << "it did not come back";
  EXPECT_EQ(order.last([&](const Block& of) { return &of != &blocks[3]; }), &blocks[2]);
  EXPECT_EQ(order.last(any), &blocks[2]);
  ++blocks[2].generation;  // freed
  EXPECT_EQ(order.last(any), &blocks[1]);
  order.left(blocks[0]);  // it was back meanwhile
  EXPECT_EQ(order.last(any), &blocks[0]);
  EXPECT_EQ(order.last([](const Block&) { return false; }), nullptr);
  EXPECT_EQ(order.size(), 0u);
}

TEST(ReverseOrder, begins_when_what_is_needed_left_last) {
  std::deque<Block> blocks(32);
  ReverseOrder order;
  for (Block& block : blocks) order.left(block);
  EXPECT_FALSE(order.may_fetch());
  order.needed(blocks[31]);
  EXPECT_FALSE(order.may_fetch());
  order.needed(blocks[28]);  // within the last fifth
  EXPECT_TRUE(order.may_fetch());
  order.needed(blocks[3]);
  EXPECT_FALSE(order.may_fetch());
  for (int i = 0; i < 20; ++i) order.needed(blocks[30]);
  for (int i = 0; i < 3; ++i) order.needed(blocks[3]);
  EXPECT_TRUE(order.may_fetch()) << "after many that were right";
  order.needed(blocks[3]);
  EXPECT_FALSE(order.may_fetch());
}

TEST(ReverseOrder, goes_on_as_what_came_is_used) {
  std::deque<Block> blocks(64);
  ReverseOrder order;
  for (Block& block : blocks) order.left(block);
  order.needed(blocks[63]);
  order.needed(blocks[62]);
  size_t next = 60;
  const auto fetch_all = [&] {
    size_t count = 0;
    for (; order.may_fetch(); ++count) {
      Block& block = blocks.at(--next);
      BlockWordInspector::put(block.word, word::with_state(0, State::resident));
      block.prefetched = true;
      order.fetched(block);
    }
    return count;
  };
  EXPECT_EQ(fetch_all(), 1u);
  EXPECT_EQ(fetch_all(), 0u) << "it was not used";
  blocks[59].prefetched = false;
  EXPECT_EQ(fetch_all(), 2u);
  blocks[58].prefetched = blocks[57].prefetched = false;
  EXPECT_EQ(fetch_all(), 8u);
  ++blocks[56].generation;  // freed unused
  EXPECT_EQ(fetch_all(), 1u);
  order.left(blocks[55]);  // again, unused
  EXPECT_EQ(fetch_all(), 0u);
}

/// Against a list in which each block stands once.
TEST(ReverseOrder, is_the_order_of_leaving_and_stays_small) {
  std::mt19937_64 random(1);
  std::deque<Block> blocks(100);
  std::vector<bool> away(blocks.size(), false);
  ReverseOrder order;
  std::vector<size_t> list;
  for (int i = 0; i < 20'000; ++i) {
    const size_t at = random() % blocks.size();
    std::erase(list, at);
    away[at] = random() % 4 != 0;
    if (away[at]) list.push_back(at), order.left(blocks[at]);
    ASSERT_LE(order.size(), 2 * blocks.size() + 256);
    if (random() % 8 != 0) continue;
    const Block* last = order.last(
        [&](const Block& block) {
          for (size_t b = 0; b < blocks.size(); ++b)
            if (&blocks[b] == &block) return static_cast<bool>(away[b]);
          return false;
        });
    ASSERT_EQ(last, list.empty() ? nullptr : &blocks[list.back()]) << "step " << i;
  }
}

}  // namespace
