// Planned places: who gets them, and when their blocks come back.
#include "allocator/blocks/placed_blocks.h"

#include <gtest/gtest.h>

#include "tests/allocator/fake_gpu.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr uint64_t base = uint64_t{1} << 40, mib = 1u << 20, known_as = 2 * mib;
constexpr uint32_t pages = granule_pages;

class PlacedBlocksTest : public ::testing::Test {
 protected:
  PlacedBlocksTest() {
    for (unsigned i = 0; i < 2; ++i)
      streams_.see(stream_[i] = reinterpret_cast<CUstream>(uintptr_t{i + 1} << 8));
    region_ = placed_.region(placed_.add_region(base, 8, 1));
    region_->mapped(base, Frame{1, 4});
  }
  void plan() {
    placed_.add_place(*region_, 7, known_as, 0, 2 * mib);
    placed_.add_place(*region_, 8, known_as, mib, 2 * mib);  // overlaps it
    placed_.add_place(*region_, 9, known_as, 4 * mib, mib);
    placed_.begin(6 * mib);
  }
  Block* hand_out(uint32_t identity) {
    PlacedBlocks::Place* place = placed_.free_place(*region_, identity, known_as, mib);
    return place ? placed_.settle_in(*place, pages) : nullptr;
  }
  void free(Block& block, Use last = {}) {
    block.use.store(last.bits);
    transit(block, Event::release);
    ready_.placed.push(block);
  }
  Block* collect() { return placed_.collect(*region_, ready_); }

  FakeGpu gpu_;
  DeviceHealth health_{gpu_.driver(), 0};
  Streams streams_{gpu_.driver(), health_};
  Uses uses_{streams_};
  BlockTable table_;
  ReadyBlocks ready_;
  PlacedBlocks placed_{table_, streams_, uses_};
  CUstream stream_[2];
  Region* region_;
};

TEST_F(PlacedBlocksTest, a_region_is_found_by_its_number_and_its_stream) {
  EXPECT_EQ(placed_.region(0), region_);
  EXPECT_EQ(placed_.region_of(1), region_);
  EXPECT_EQ(placed_.region_of(0), nullptr);
  const uint32_t number = placed_.add_region(base + (uint64_t{1} << 39), 8, 0);
  EXPECT_EQ(number, 1u);
  EXPECT_EQ(placed_.region(1), placed_.region_of(0));
  EXPECT_EQ(placed_.regions().size(), 2u);
}

TEST_F(PlacedBlocksTest, a_place_is_handed_out_while_nothing_overlaps_it) {
  EXPECT_EQ(hand_out(7), nullptr) << "nothing is planned";
  plan();
  EXPECT_TRUE(placed_.active());
  EXPECT_EQ(placed_.places(), 3u);
  EXPECT_EQ(placed_.planned_bytes(), 6 * mib);
  Block* block = hand_out(7);
  ASSERT_TRUE(block);
  EXPECT_EQ(block->address, base);
  EXPECT_EQ(block->place_bytes, 2 * mib);
  EXPECT_EQ(block->stream, 1u);
  EXPECT_EQ(block->pages, pages);
  EXPECT_EQ(block->state(), State::resident);
  EXPECT_TRUE(block->word.load() & word::placed);
  EXPECT_EQ(region_->at(base + mib, table_), block);
  EXPECT_EQ(placed_.placed(), 1u);
  EXPECT_EQ(hand_out(7), nullptr);
  EXPECT_EQ(hand_out(8), nullptr);
  EXPECT_TRUE(hand_out(9));
  EXPECT_EQ(hand_out(10), nullptr);
  EXPECT_EQ(placed_.check(), 4u);
  free(*block);
  EXPECT_EQ(hand_out(8), nullptr) << "before it was taken back";
  EXPECT_EQ(collect(), nullptr);
  EXPECT_TRUE(hand_out(8));
  EXPECT_EQ(placed_.placed(), 3u);
}

TEST_F(PlacedBlocksTest, a_place_is_as_large_as_what_was_asked_for_and_known_by_its_size) {
  plan();
  EXPECT_EQ(placed_.free_place(*region_, 9, known_as, mib + 1), nullptr);
  EXPECT_TRUE(placed_.free_place(*region_, 9, known_as, mib));
  EXPECT_EQ(placed_.free_place(*region_, 9, 2 * known_as, mib), nullptr);
  EXPECT_EQ(placed_.place_of(9, 2 * known_as), nullptr);
  const Region other{base * 2, 8, 0};
  EXPECT_EQ(placed_.free_place(other, 9, known_as, mib), nullptr);
}

TEST_F(PlacedBlocksTest, an_identity_played_twice_at_once_has_two_places) {
  placed_.add_place(*region_, 7, known_as, 0, 2 * mib);
  placed_.add_place(*region_, 7, known_as, 4 * mib, 2 * mib);
  placed_.begin(8 * mib);
  Block* first = hand_out(7);
  Block* second = hand_out(7);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->address, second->address);
  EXPECT_EQ(hand_out(7), nullptr);
  EXPECT_TRUE(placed_.place_of(7, known_as)) << "it has one, though none is free";
}

TEST_F(PlacedBlocksTest, the_same_block_returns_to_its_place) {
  plan();
  Block* block = hand_out(7);
  ASSERT_TRUE(block);
  free(*block);
  EXPECT_EQ(collect(), nullptr);
  EXPECT_EQ(region_->used_bytes(), 0u);
  EXPECT_EQ(hand_out(7), block);
}

TEST_F(PlacedBlocksTest, a_barred_place_is_handed_out_no_more_and_missed_by_nobody) {
  plan();
  Block own;
  EXPECT_TRUE(placed_.missed(7, own));
  EXPECT_FALSE(placed_.missed(10, own));
  Block* block = hand_out(7);
  ASSERT_TRUE(block);
  EXPECT_FALSE(placed_.missed(7, *block));
  placed_.bar(*block);
  free(*block);
  EXPECT_EQ(collect(), nullptr);
  EXPECT_EQ(hand_out(7), nullptr);
  EXPECT_FALSE(placed_.missed(7, own));
  placed_.stop();
  EXPECT_FALSE(placed_.missed(8, own));
}

TEST_F(PlacedBlocksTest, uses_that_are_not_over_stay_with_the_region) {
  plan();
  Block* block = hand_out(7);
  ASSERT_TRUE(block);
  for (CUstream stream : stream_) gpu_.give(stream);
  uses_.add(*block, streams_.now(0));
  const Use last = streams_.now(1);
  free(*block, last);
  EXPECT_EQ(collect(), nullptr);
  ASSERT_EQ(region_->others.size(), 1u);
  EXPECT_EQ(region_->others[0].stream(), 0u);
  EXPECT_TRUE(block->more_uses.empty());
  EXPECT_FALSE(block->word.load() & word::many_uses);
  EXPECT_EQ(region_->frames().begin()->second.last.bits, last.bits);
}

TEST_F(PlacedBlocksTest, blocks_of_a_plan_that_is_gone_are_dropped) {
  plan();
  Block* used = hand_out(7);
  Block* unused = hand_out(9);
  ASSERT_TRUE(used && unused);
  free(*unused);
  EXPECT_EQ(collect(), nullptr);
  placed_.stop();
  EXPECT_EQ(hand_out(9), nullptr);
  EXPECT_EQ(placed_.forget(), std::vector<Block*>{unused});
  EXPECT_EQ(placed_.places(), 0u);
  const uint32_t generation = unused->generation;
  placed_.drop(*unused);
  EXPECT_EQ(unused->state(), State::free);
  EXPECT_EQ(unused->place_bytes, 0u);
  EXPECT_EQ(unused->generation, generation + 1);
  EXPECT_EQ(table_.make(), unused);

  plan();  // the one in use is none of the new plan's
  free(*used);
  EXPECT_EQ(collect(), used);
  placed_.drop(*used);
  EXPECT_EQ(collect(), nullptr);
}

TEST_F(PlacedBlocksTest, blocks_that_come_back_after_the_stop_are_dropped) {
  plan();
  Block* block = hand_out(7);
  ASSERT_TRUE(block);
  placed_.stop();
  free(*block);
  EXPECT_EQ(collect(), block);
  placed_.drop(*block);
  EXPECT_TRUE(placed_.forget().empty()) << "it is no place's any more";
}

TEST_F(PlacedBlocksTest, what_is_free_between_blocks_in_use_is_counted) {
  const auto never = [](const Block&) { return false; };
  plan();
  EXPECT_EQ(placed_.gaps(never), (std::pair<int64_t, int64_t>{0, 0}));
  EXPECT_EQ(placed_.busy_bytes(), 0u);
  ASSERT_TRUE(hand_out(7));
  Block* block = hand_out(9);
  ASSERT_TRUE(block);
  EXPECT_EQ(placed_.gaps(never), (std::pair<int64_t, int64_t>{2, 5 * mib}));
  EXPECT_EQ(placed_.busy_bytes(), 4 * granule_bytes);
  transit(*block, Event::release);
  EXPECT_EQ(placed_.gaps(never), (std::pair<int64_t, int64_t>{1, 6 * mib}));
  EXPECT_EQ(placed_.gaps([](const Block&) { return true; }),
            (std::pair<int64_t, int64_t>{2, 5 * mib}));
}

}  // namespace
