// A region against a naive model: which bytes are in use, and by whom; where frames are.
#include <gtest/gtest.h>

#include <random>

#include "allocator/blocks/region.h"

using namespace firn;

namespace {

constexpr uint64_t base = uint64_t{1} << 40, mib = 1u << 20;

class RegionTest : public testing::Test {
 protected:
  Block& block(uint64_t offset, uint64_t bytes) {
    Block& made = *table_.make();
    made.address = base + offset;
    made.place_bytes = bytes;
    return made;
  }
  void map(uint32_t granule, uint32_t granules) {
    region_.mapped(base + granule * granule_bytes, Frame{1, granules});
  }
  Block* at(uint64_t offset) const { return region_.at(base + offset, table_); }

  BlockTable table_;
  Region region_{base, 32, 3};
};

TEST_F(RegionTest, three_blocks_within_a_granule_are_told_apart) {
  map(0, 4);
  Block& before = block(mib / 2, 2 * mib);                  // covers the second granule's start
  Block& within = block(5 * mib / 2, mib);                  // begins in its first half
  Block& after = block(7 * mib / 2, mib + 512);             // and in its second
  for (Block* each : {&before, &within, &after}) region_.use(*each);
  EXPECT_EQ(at(mib / 2 - 1), nullptr);
  EXPECT_EQ(at(mib / 2), &before);
  EXPECT_EQ(at(5 * mib / 2 - 1), &before);
  EXPECT_EQ(at(5 * mib / 2), &within);
  EXPECT_EQ(at(7 * mib / 2 - 1), &within);
  EXPECT_EQ(at(7 * mib / 2), &after);
  EXPECT_EQ(at(9 * mib / 2 + 511), &after);
  EXPECT_EQ(at(9 * mib / 2 + 512), nullptr);
  region_.leave(within, {});
  EXPECT_EQ(at(3 * mib), nullptr);
  EXPECT_EQ(at(2 * mib), &before);
}

/// The block that was freed first may be taken back last, and a fence is another stream's.
TEST_F(RegionTest, an_older_use_takes_no_later_ones_place) {
  map(0, 2);
  Block &first = block(0, mib), &second = block(mib, mib), &fenced = block(2 * mib, mib);
  for (Block* each : {&first, &second, &fenced}) region_.use(*each);
  region_.leave(second, Use::make(3, 9));
  region_.leave(first, Use::make(3, 8));
  EXPECT_EQ(region_.frames().at(base).last.epoch(), 9u);
  region_.leave(fenced, Use::make(5, 70));
  EXPECT_EQ(region_.frames().at(base).last.bits, Use::make(3, 9).bits);
  ASSERT_EQ(region_.others.size(), 1u);
  EXPECT_EQ(region_.others[0].bits, Use::make(5, 70).bits);
}

TEST_F(RegionTest, a_frame_remembers_what_it_was_used_for_last) {
  map(0, 2);
  map(2, 2);
  Block& both = block(3 * mib, 2 * mib);
  region_.use(both);
  EXPECT_FALSE(region_.idle(base));
  EXPECT_FALSE(region_.idle(base + 4 * mib));
  region_.leave(both, Use::make(3, 9));
  EXPECT_TRUE(region_.idle(base) && region_.idle(base + 4 * mib));
  EXPECT_EQ(region_.frames().at(base).last.epoch(), 9u);
  EXPECT_EQ(region_.frames().at(base + 4 * mib).last.epoch(), 9u);
}

TEST_F(RegionTest, gaps_and_runs_are_what_has_no_frame_and_what_has) {
  map(1, 1);
  map(2, 4);
  map(8, 2);
  EXPECT_EQ(region_.mapped_granules(), 7u);
  EXPECT_EQ(region_.lacking(base, base + 20 * mib), 3u);
  const auto gaps = region_.gaps(base, base + 20 * mib);
  ASSERT_EQ(gaps.size(), 2u);
  EXPECT_EQ(gaps[0].begin, base);
  EXPECT_EQ(gaps[0].granules, 1u);
  EXPECT_EQ(gaps[1].begin, base + 12 * mib);
  EXPECT_EQ(gaps[1].granules, 2u);
  const auto runs = region_.runs();
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].begin, base + 2 * mib);
  EXPECT_EQ(runs[0].granules, 5u);
  EXPECT_EQ(region_.unmapped(base + 4 * mib).granules, 4u);
  EXPECT_EQ(region_.lacking(base, base + 20 * mib), 7u);
}

TEST_F(RegionTest, any_use_is_what_a_list_of_blocks_says) {
  std::mt19937_64 random(1);
  map(0, 16);
  map(16, 16);
  std::vector<Block*> used;
  const auto around = [&](uint64_t offset) -> Block* {
    for (Block* each : used)
      if (base + offset - each->address < each->place_bytes) return each;
    return nullptr;
  };
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t bytes = mib + 512 * (random() % 12'000);
    const uint64_t offset = 512 * (random() % ((64 * mib - bytes) / 512));
    bool free = true;
    for (const Block* each : used)
      free &= each->address >= base + offset + bytes ||
              each->address + each->place_bytes <= base + offset;
    ASSERT_EQ(region_.free(base + offset, base + offset + bytes), free) << i;
    if (free) {
      used.push_back(&block(offset, bytes));
      region_.use(*used.back());
    } else if (!used.empty() && random() % 2) {
      const size_t gone = random() % used.size();
      region_.leave(*used[gone], {});
      used.erase(used.begin() + static_cast<ptrdiff_t>(gone));
    }
    for (int look = 0; look < 4; ++look) {
      const uint64_t where = random() % (64 * mib);
      ASSERT_EQ(at(where), around(where)) << i << " at " << where;
    }
  }
  uint64_t sum = 0;
  for (const Block* each : used) sum += each->place_bytes;
  EXPECT_EQ(region_.used_bytes(), sum);
}

}  // namespace
