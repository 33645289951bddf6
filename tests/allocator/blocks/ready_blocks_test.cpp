// Ready blocks: the lock-free stacks, and the fronts of threads before them.
#include "allocator/blocks/ready_blocks.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

using namespace firn;

namespace {
/// `held`: how many a thread takes before it puts them back, the first one first.
void share(int blocks, int rounds, size_t held) {
  BlockTable table;
  ReadyStack stack;
  constexpr int threads = 4;
  std::vector<std::atomic<int>> owners(static_cast<size_t>(blocks));
  for (int i = 0; i < blocks; ++i) stack.push(*table.make());
  std::vector<std::thread> pool;
  std::atomic<bool> wrong{false};
  for (int t = 0; t < threads; ++t)
    pool.emplace_back([&] {
      std::vector<Block*> mine;
      for (int i = 0; i < rounds && !wrong; ++i) {
        while (mine.size() < held) {
          Block* block = stack.pop(table);
          if (!block) break;
          if (owners[block->index].fetch_add(1) != 0) wrong = true;
          mine.push_back(block);
        }
        for (Block* block : mine) {
          if (owners[block->index].fetch_sub(1) != 1) wrong = true;
          stack.push(*block);
        }
        mine.clear();
      }
    });
  for (std::thread& thread : pool) thread.join();
  ASSERT_FALSE(wrong);
  std::set<Block*> left;
  while (Block* block = stack.pop(table)) ASSERT_TRUE(left.insert(block).second);
  EXPECT_EQ(left.size(), static_cast<size_t>(blocks));
}
}  // namespace

TEST(ReadyStack, threads_neither_lose_nor_double_a_block) { share(64, 20'000, 1); }

// Little is left on the stack: what a thread saw at the top is there again soon, over another one.
TEST(ReadyStack, what_is_at_the_top_again_is_not_taken_for_what_was) { share(6, 3'000'000, 2); }

namespace {
constexpr unsigned large = size_class::small_count;  // the first class of large blocks

struct Ready {
  BlockTable table;
  ReadyBlocks blocks;

  Block& make(unsigned size_class) {
    Block* block = table.make();
    block->size_class = static_cast<uint16_t>(size_class);
    return *block;
  }
};
}  // namespace

TEST(ReadyBlocks, what_a_thread_freed_is_its_own_until_others_find_nothing_else) {
  Ready ready;
  (void)thread_cell();  // numbers below this thread's were given
  Block &first = ready.make(3), &second = ready.make(3), &other = ready.make(4);
  for (Block* block : {&first, &second, &other}) ready.blocks.push(0, *block);
  EXPECT_EQ(ready.blocks.count(ready.table, 3, 10), 2u);
  EXPECT_EQ(ready.blocks.pop(1, ready.table, 4), nullptr) << "at the front of thread 0";
  EXPECT_EQ(ready.blocks.pop(1, ready.table, 3), &second);
  EXPECT_EQ(ready.blocks.pop(1, ready.table, 3), nullptr);
  EXPECT_EQ(ready.blocks.pop_any(ready.table, 3), &first);
  EXPECT_EQ(ready.blocks.pop(0, ready.table, 4), &other);
  EXPECT_EQ(ready.blocks.count(ready.table, 3, 10), 0u);
}

TEST(ReadyBlocks, classes_that_share_a_place_are_told_apart) {
  Ready ready;
  (void)thread_cell();
  // Whatever the places are: more classes than there are.
  std::vector<Block*> blocks;
  for (unsigned c = 0; c < 100; ++c) blocks.push_back(&ready.make(c));
  for (Block* block : blocks) ready.blocks.push(0, *block);
  for (unsigned c = 0; c < 100; ++c) {
    EXPECT_EQ(ready.blocks.pop(0, ready.table, c), blocks[c]);
    EXPECT_EQ(ready.blocks.pop(0, ready.table, c), nullptr);
  }
}

TEST(ReadyBlocks, threads_beyond_those_with_a_number_of_their_own_use_the_stacks) {
  Ready ready;
  Block& block = ready.make(7);
  ready.blocks.push(cells_own, block);
  EXPECT_EQ(ready.blocks.pop(0, ready.table, 7), &block);
}

TEST(ReadyBlocks, all_of_the_large_ones_are_taken_and_no_small_one) {
  Ready ready;
  (void)thread_cell();
  std::set<Block*> all;
  for (unsigned c : {0u, 5u, large - 1, large, large + 1, large + 8, large + 64,
                     size_class::count - 1})
    for (int i = 0; i < 3; ++i) {
      Block& block = ready.make(c);
      ready.blocks.push(i == 0 ? 0 : cells, block);
      if (c >= large) all.insert(&block);
    }
  std::set<Block*> taken;
  size_t small = 0;
  ready.blocks.take_all(ready.table, 0, large, [&](Block& block) {
    EXPECT_LT(block.size_class, large);
    ++small;
  });
  EXPECT_EQ(small, 9u);
  ready.blocks.take_all(ready.table, large, size_class::count, [&](Block& block) {
    EXPECT_TRUE(taken.insert(&block).second);
  });
  EXPECT_EQ(taken, all);
  ready.blocks.take_all(ready.table, 0, size_class::count, [](Block&) { ADD_FAILURE(); });
}

// Each thread frees and allocates with its own number; one takes all there is, as memory for others
// is made.
TEST(ReadyBlocks, threads_neither_lose_nor_double_a_block) {
  Ready ready;
  constexpr int blocks = 96, threads = 4, rounds = 30'000;
  std::vector<std::atomic<int>> owners(blocks);
  for (int i = 0; i < blocks; ++i) ready.blocks.push(cells, ready.make(i % 12 * 8));
  std::atomic<bool> wrong{false}, over{false};
  const auto own = [&](Block& block) {
    if (owners[block.index].fetch_add(1) != 0) wrong = true;
  };
  const auto give = [&](Block& block, unsigned cell) {
    if (owners[block.index].fetch_sub(1) != 1) wrong = true;
    ready.blocks.push(cell, block);
  };
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t)
    pool.emplace_back([&, t] {
      const unsigned cell = thread_cell();
      std::vector<Block*> held;
      for (int i = 0; i < rounds; ++i) {
        const unsigned size_class = (i * 7 + t) % 12 * 8;
        Block* block = i % 16 == 0 ? ready.blocks.pop_any(ready.table, size_class)
                                   : ready.blocks.pop(cell, ready.table, size_class);
        if (block) {
          own(*block);
          held.push_back(block);
        }
        if (held.size() > 4 || (!block && !held.empty())) {
          give(*held.front(), cell);
          held.erase(held.begin());
        }
      }
      for (Block* block : held) give(*block, cell);
    });
  std::thread taker([&] {
    while (!over) {
      std::vector<Block*> taken;
      ready.blocks.take_all(ready.table, 16, size_class::count, [&](Block& block) {
        own(block);
        taken.push_back(&block);
      });
      for (Block* block : taken) give(*block, cells);
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : pool) thread.join();
  over = true;
  taker.join();
  EXPECT_FALSE(wrong);
  std::set<Block*> left;
  ready.blocks.take_all(ready.table, 0, size_class::count, [&](Block& block) {
    EXPECT_TRUE(left.insert(&block).second);
  });
  EXPECT_EQ(left.size(), static_cast<size_t>(blocks));
}
