// Small blocks in their segments: which is found at an address, which bytes are free, and how a
// segment is set aside, opened and dropped.
#include "tests/allocator/blocks/small_blocks_fixture.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/scarce_memory.h"

using namespace firn;
using namespace firn::test;

namespace {

TEST_F(SmallBlocksTest, a_block_is_found_by_every_address_inside_it_and_none_between) {
  add();
  const std::vector<size_t> sizes = {512, 1536, 4 * KiB, 512, 96 * KiB, 896 * KiB, 512, 640 * KiB};
  std::vector<Block*> blocks;
  for (const size_t bytes : sizes) blocks.push_back(make(bytes));
  for (const size_t gone : {1, 4, 6}) free(std::exchange(blocks[gone], nullptr));
  uint64_t begin = base;
  for (size_t i = 0; i < sizes.size(); begin += sizes[i++]) {
    const uint64_t step = sizes[i] <= 4 * KiB ? 1 : 127;
    for (uint64_t offset = 0; offset < sizes[i]; offset += step)
      ASSERT_EQ(at(begin + offset), blocks[i]) << i << " + " << offset;
    ASSERT_EQ(at(begin + sizes[i] - 1), blocks[i]) << i;
  }
  for (const uint64_t behind : {begin, begin + 511, begin + 512, base + granule_bytes - 1})
    EXPECT_EQ(at(behind), nullptr) << behind - base;
  EXPECT_EQ(small_.blocks(), 5);
}

TEST_F(SmallBlocksTest, segments_side_by_side_are_told_apart_by_their_numbers) {
  const uint32_t first = add(), second = add(1);
  small_.segment(first).emptied = Use::make(0, 7);
  Block* left = make(900 * KiB);
  EXPECT_FALSE(small_.segment(first).emptied);
  Block* right = make(512, 1);
  EXPECT_EQ(small_.at(first, base, table_), left);
  EXPECT_EQ(at(base), left);
  EXPECT_EQ(small_.at(second, right->address, table_), right);
  EXPECT_EQ(at(base + granule_bytes - 1), nullptr);
  EXPECT_EQ(&small_.segment(first), &small_.segment(SmallBlocks::segment_mark | first));
  EXPECT_EQ(small_.segment(second).stream, 1u);
  EXPECT_EQ(small_.segment(second).address, base + granule_bytes);
}

TEST_F(SmallBlocksTest, free_neighbours_join_within_a_segment_and_not_across_segments) {
  const uint32_t first = add(), second = add();
  std::vector<Block*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(make(512 * KiB));
  EXPECT_EQ(small_.gaps().pieces, 0);
  for (const int left : {0, 2}) free(blocks[static_cast<size_t>(left)]);
  EXPECT_EQ(small_.gaps().pieces, 2);
  EXPECT_EQ(make(768 * KiB), nullptr);
  free(blocks[1]);
  EXPECT_EQ(small_.gaps().pieces, 1);
  Block* joined = make(768 * KiB);
  ASSERT_NE(joined, nullptr);
  EXPECT_EQ(joined->address, base);
  free(joined);
  EXPECT_FALSE(small_.take_out(small_.segment(first))) << "a block is in it";
  for (const size_t last : {3, 4}) free(blocks[last]);  // on both sides of the boundary
  EXPECT_EQ(small_.gaps().whole_bytes, static_cast<int64_t>(granule_bytes));
  EXPECT_EQ(small_.gaps().pieces, 1);
  for (const size_t last : {5, 6, 7}) free(blocks[last]);
  EXPECT_EQ(small_.gaps().whole_bytes, static_cast<int64_t>(2 * granule_bytes));
  EXPECT_FALSE(small_.take(0, granule_bytes + 512));
  EXPECT_TRUE(small_.take_out(small_.segment(first)));
  EXPECT_TRUE(small_.take_out(small_.segment(second)));
  EXPECT_FALSE(small_.take(0, 512));
  EXPECT_EQ(small_.blocks(), 0);
}

TEST_F(SmallBlocksTest, bytes_that_no_block_was_made_for_go_back_and_join) {
  const uint32_t numbers[] = {add(), add()};
  const std::optional<uint64_t> address = small_.take(0, 4 * KiB);
  ASSERT_EQ(address, base);
  ASSERT_EQ(small_.take(0, granule_bytes - 4 * KiB), base + 4 * KiB);
  EXPECT_FALSE(small_.take_out(small_.segment(numbers[0])));
  small_.give(0, base + 4 * KiB, granule_bytes - 4 * KiB);  // before the other segment's bytes
  small_.give(0, *address, 4 * KiB);
  for (const uint32_t number : numbers) EXPECT_TRUE(small_.take_out(small_.segment(number)));
}

TEST_F(SmallBlocksTest, a_streams_blocks_come_into_its_own_segments_only) {
  add(1);
  EXPECT_EQ(make(512, 0), nullptr);
  EXPECT_NE(make(512, 1), nullptr);
}

TEST_F(SmallBlocksTest, each_visits_every_block_once_by_address_until_it_is_told_to_stop) {
  const Segment& segment = small_.segment(add());
  add();
  EXPECT_TRUE(all_of(segment).empty());
  std::vector<Block*> blocks;
  for (const size_t bytes : {512, 1024, 96 << 10, 512, 768 << 10, 4096})
    blocks.push_back(make(bytes));
  EXPECT_EQ(all_of(segment), blocks);
  free(blocks[2]);
  transit(*blocks[1], Event::release);  // ready: still there
  blocks.erase(blocks.begin() + 2);
  EXPECT_EQ(all_of(segment), blocks);
  Block* last = make_at(0, base + granule_bytes - 512, 512);
  blocks.push_back(last);
  EXPECT_EQ(all_of(segment), blocks);
  size_t seen = 0;
  EXPECT_FALSE(SmallBlocks::each(segment, table_, [&](const Block&) { return ++seen < 3; }));
  EXPECT_EQ(seen, 3u);
}

TEST_F(SmallBlocksTest, a_dropped_segments_number_is_used_again) {
  const uint32_t numbers[] = {add(), add(), add()};
  EXPECT_EQ(small_.segments(), 3u);
  Segment& segment = small_.segment(numbers[1]);
  ASSERT_TRUE(small_.set_aside(segment, table_));
  segment.emptied = Use::make(0, 7);
  segment.whole = table_.make();
  small_.drop(numbers[1]);
  EXPECT_EQ(segment.whole.load(), nullptr);
  EXPECT_FALSE(segment.aside);
  EXPECT_FALSE(segment.emptied);
  EXPECT_FALSE(small_.full());
  EXPECT_EQ(small_.segments(), 3u);
  EXPECT_EQ(add(1), numbers[1]);
  EXPECT_EQ(&small_.segment(numbers[1]), &segment) << "looked up without the lock";
  EXPECT_EQ(segment.address, base + 3 * granule_bytes);
  EXPECT_EQ(segment.stream, 1u);
  EXPECT_EQ(add(), 3u);
  EXPECT_EQ(small_.segments(), 4u);
}

TEST_F(SmallBlocksTest, an_empty_segment_comes_back_empty) {
  const uint32_t number = add();
  std::vector<Block*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(make(20 * KiB));
  for (Block* block : blocks) free(block);
  drop(number);
  ASSERT_EQ(add(), number);
  for (uint64_t offset = 0; offset < granule_bytes; offset += unit_bytes)
    ASSERT_EQ(at(base + granule_bytes + offset), nullptr) << offset;
  EXPECT_TRUE(all_of(small_.segment(number)).empty());
}

TEST_F(SmallBlocksTest, a_segment_that_memory_is_lacking_for_has_no_number) {
  add();
  memory_left = 0;
  EXPECT_THROW((void)small_.add(0, base + granule_bytes), std::bad_alloc);
  memory_left = -1;
  EXPECT_EQ(small_.segments(), 1u);
  EXPECT_EQ(add(), 1u);
}

class Aside : public SmallBlocksTest {
 protected:
  Aside() {
    for (const size_t bytes : {512 * KiB, 256 * KiB, 4 * KiB, 640 * KiB})
      blocks_.push_back(make(bytes));
    for (Block* block : blocks_) block->word.set(word::proven);
    free(std::exchange(blocks_[1], nullptr));
    std::erase(blocks_, nullptr);
  }
  size_t marked() const {
    return static_cast<size_t>(std::ranges::count_if(
        blocks_, [](const Block* block) { return block->word.load() & word::aside; }));
  }
  SmallBlocks::Inside inside() const { return SmallBlocks::look_inside(segment_, table_); }

  Segment& segment_ = small_.segment(add());
  std::vector<Block*> blocks_;
};

TEST_F(Aside, nothing_comes_into_a_segment_that_is_set_aside_until_it_is_opened) {
  EXPECT_EQ(small_.gaps().pieces, 2);
  ASSERT_TRUE(inside().may_leave);
  EXPECT_FALSE(inside().ready);
  add();  // another segment of the stream, which stays
  ASSERT_TRUE(small_.set_aside(segment_, table_));
  EXPECT_TRUE(segment_.aside);
  EXPECT_EQ(marked(), 3u);
  EXPECT_EQ(small_.gaps().pieces, 0);
  Block* other = make(512);
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(other->address, base + granule_bytes);
  EXPECT_TRUE(small_.set_aside(segment_, table_)) << "once more";
  free(blocks_.front());  // its bytes are nobody's meanwhile
  blocks_.erase(blocks_.begin());
  EXPECT_EQ(small_.gaps().pieces, 1) << "the other's";
  EXPECT_EQ(segment_.live, 2u);
  EXPECT_EQ(at(base), nullptr);
  EXPECT_EQ(at(blocks_.front()->address), blocks_.front());

  small_.open(segment_, table_);
  EXPECT_FALSE(segment_.aside);
  EXPECT_EQ(marked(), 0u);
  EXPECT_EQ(small_.gaps().pieces, 3);
  EXPECT_EQ(small_.take(0, 768 * KiB), base);
  for (Block* block : blocks_) free(block);
  small_.give(0, base, 768 * KiB);
  EXPECT_TRUE(small_.take_out(segment_));
}

TEST_F(Aside, one_block_that_stays_keeps_its_segment) {
  Block& block = *blocks_[1];
  uint64_t w = block.word.load();
  ASSERT_TRUE(block.word.try_hold(w));
  EXPECT_FALSE(inside().may_leave);
  EXPECT_FALSE(small_.set_aside(segment_, table_));
  EXPECT_EQ(marked(), 1u) << "those before it";
  EXPECT_EQ(small_.gaps().pieces, 0);
  small_.open(segment_, table_);
  EXPECT_EQ(marked(), 0u);
  EXPECT_EQ(small_.gaps().pieces, 2);
  block.word.drop_hold();
  EXPECT_TRUE(inside().may_leave);
  block.word.clear(word::proven);
  EXPECT_FALSE(inside().may_leave);
  block.word.set(word::proven);
  block.word.set(word::pinned);
  EXPECT_FALSE(inside().may_leave);
  block.word.clear(word::pinned);
  block.word.set(word::freed);
  EXPECT_FALSE(inside().may_leave);
  block.kept = true;
  EXPECT_TRUE(inside().may_leave);
  block.kept = false;
  block.word.clear(word::freed);
  EXPECT_TRUE(small_.set_aside(segment_, table_));
}

TEST_F(Aside, a_ready_block_is_retired_before_its_segment_leaves) {
  transit(*blocks_[2], Event::release, word::proven);
  EXPECT_TRUE(inside().may_leave);
  EXPECT_TRUE(inside().ready);
  EXPECT_FALSE(small_.set_aside(segment_, table_)) << "another thread may take it";
  small_.open(segment_, table_);
  retire(*blocks_[2]);
  blocks_.pop_back();
  EXPECT_FALSE(inside().ready);
  EXPECT_TRUE(small_.set_aside(segment_, table_));
}

TEST_F(SmallBlocksTest, the_block_that_stands_for_a_segment_is_found_where_a_live_one_lies) {
  const uint32_t number = add();
  Block& block = *make(4 * KiB);
  Block* whole = table_.make();
  const auto found = [&](bool proves) {
    return small_.whole_at(number | SmallBlocks::segment_mark, base + 100, table_, proves);
  };
  const auto proven = [&] { return bool(block.word.load() & word::proven); };
  EXPECT_EQ(found(true), nullptr) << "nobody watches yet";
  EXPECT_FALSE(proven());
  small_.segment(number).whole = whole;
  EXPECT_EQ(small_.whole_at(number, base + 4 * KiB, table_, true), nullptr);
  EXPECT_EQ(found(false), whole);
  EXPECT_FALSE(proven());
  block.word.set(word::outside);
  EXPECT_EQ(found(false), whole);
  EXPECT_TRUE(proven());
  block.word.clear(word::outside | word::proven);
  EXPECT_EQ(found(true), whole);
  EXPECT_TRUE(proven());
  EXPECT_EQ(found(false), whole);
  block.word.set(word::freed);
  EXPECT_EQ(found(true), nullptr);
  block.word.clear(word::freed);
  transit(block, Event::release);
  EXPECT_EQ(found(true), nullptr);
}

TEST_F(SmallBlocksTest, ready_blocks_join_before_a_large_pool_grows) {
  ReadyBlocks ready;
  size_t retired = 0;
  const auto take = [&] {
    return small_.take_joined(0, 896 * KiB, ready, table_, [&](Block& block) {
      ++retired;
      retire(block);
    });
  };
  const auto fill = [&](uint32_t segments) {
    for (uint32_t i = 0; i < segments; ++i) add();
    std::vector<Block*> blocks;
    while (Block* block = make(512 * KiB)) blocks.push_back(block);
    for (Block* block : blocks) {
      transit(*block, Event::release);
      ready.push(cells_own, *block);
    }
  };
  fill(15);
  EXPECT_EQ(take(), std::nullopt);
  EXPECT_EQ(retired, 0u);
  fill(1);
  EXPECT_EQ(take(), base);
  EXPECT_EQ(retired, 64u);
  EXPECT_EQ(small_.blocks(), 0);
}

}  // namespace
