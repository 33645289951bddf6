// Small blocks against a naive model, which has a number for each unit; and looked up by threads.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/allocator/blocks/small_blocks_fixture.h"

using namespace firn;
using namespace firn::test;

namespace {

/// Of each unit of the segments, the block in it: its index + 1, or 0.
struct Model {
  using Units = std::vector<uint32_t>;
  std::map<uint64_t, Units> segments[2];  // per stream, by address

  static uint32_t longest(const Units& units) {
    uint32_t run = 0, longest = 0;
    for (const uint32_t unit : units) longest = std::max(longest, run = unit ? 0 : run + 1);
    return longest;
  }
  static int64_t gaps(const Units& units) {
    int64_t gaps = 0;
    for (size_t i = 0; i < units.size(); ++i) gaps += !units[i] && (i == 0 || units[i - 1]);
    return gaps;
  }
};

class AgainstModel : public SmallBlocksTest {
 protected:
  static constexpr size_t units = SmallBlocks::units_per_segment;

  Model::Units& units_of(unsigned stream, uint64_t address) {
    return model_.segments[stream].at(address / granule_bytes * granule_bytes);
  }
  void mark(const Block& block, uint32_t name) {
    Model::Units& of = units_of(block.stream, block.address);
    const auto first = static_cast<ptrdiff_t>(block.address % granule_bytes / unit_bytes);
    std::fill_n(of.begin() + first, block.bytes / unit_bytes, name);
  }
  void allocate(unsigned stream, size_t bytes) {
    uint32_t longest = 0;
    for (const auto& [address, of] : model_.segments[stream])
      if (!small_.segment(numbers_.at(address)).aside)
        longest = std::max(longest, Model::longest(of));
    Block* block = make(bytes, stream);
    ASSERT_EQ(block != nullptr, longest * unit_bytes >= bytes);
    if (!block) {
      model_.segments[stream][base + granules_ * granule_bytes] = Model::Units(units);
      add(stream);
      block = make(bytes, stream);
      ASSERT_NE(block, nullptr);
    }
    ASSERT_FALSE(segment_of(*block).aside);
    const Model::Units& of = units_of(stream, block->address);
    const uint64_t first = block->address % granule_bytes / unit_bytes;
    for (uint64_t unit = first; unit < first + bytes / unit_bytes; ++unit) ASSERT_EQ(of[unit], 0u);
    block->word.set(word::proven);
    mark(*block, block->index + 1);
    live_.push_back(block);
  }
  void look(std::mt19937_64& random) {
    int64_t gaps = 0, whole = 0;
    for (unsigned stream = 0; stream < 2; ++stream)
      for (const auto& [address, of] : model_.segments[stream]) {
        const Segment& segment = small_.segment(numbers_.at(address));
        if (!segment.aside) {
          const bool empty = Model::longest(of) == units;
          whole += empty;
          gaps += empty ? 0 : Model::gaps(of);
        }
        std::vector<Block*> there;
        for (size_t unit = 0; unit < units; ++unit)
          if (of[unit] != 0 && (there.empty() || there.back() != &table_[of[unit] - 1]))
            there.push_back(&table_[of[unit] - 1]);
        ASSERT_EQ(segment.live, there.size());
        ASSERT_EQ(all_of(segment), there);
        for (int i = 0; i < 20; ++i) {
          const uint64_t offset = random() % granule_bytes;
          const uint32_t name = of[offset / unit_bytes];
          ASSERT_EQ(at(address + offset), name ? &table_[name - 1] : nullptr) << offset;
        }
      }
    ASSERT_EQ(small_.gaps().pieces, gaps);
    ASSERT_EQ(small_.gaps().whole_bytes, whole * static_cast<int64_t>(granule_bytes));
    ASSERT_EQ(small_.blocks(), static_cast<int64_t>(live_.size()));
  }
  void step(std::mt19937_64& random) {
    const uint64_t what = random() % 100;
    if (what < 55) {
      const size_t bytes = size_class::small_bytes(
          static_cast<unsigned>(random() % size_class::small_count));
      ASSERT_NO_FATAL_FAILURE(allocate(random() % 2, bytes));
    } else if (what < 90) {
      if (live_.empty()) return;
      std::swap(live_[random() % live_.size()], live_.back());
      Block* block = live_.back();
      live_.pop_back();
      mark(*block, 0);
      free(block);
    } else {
      auto& segments = model_.segments[random() % 2];
      if (segments.empty()) return;
      const auto chosen = std::next(segments.begin(),
                                    static_cast<ptrdiff_t>(random() % segments.size()));
      const uint32_t number = numbers_.at(chosen->first);
      Segment& segment = small_.segment(number);
      const bool empty = segment.live == 0;
      if (segment.aside && !empty) {
        small_.open(segment, table_);
      } else if (what < 95) {
        ASSERT_TRUE(small_.set_aside(segment, table_));
      } else {
        ASSERT_EQ(segment.aside || small_.take_out(segment), empty);
        if (!empty) return;
        small_.drop(number);
        numbers_.erase(chosen->first);
        segments.erase(chosen);
      }
    }
  }

  Model model_;
  std::vector<Block*> live_;
};

TEST_F(AgainstModel, agrees_with_a_naive_one) {
  uint64_t first = 1, count = 20;
  if (const char* seed = std::getenv("FIRN_SEED")) {
    first = std::strtoull(seed, nullptr, 10);
    count = 1;
  }
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("FIRN_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    for (int i = 0; i < 400; ++i) {
      ASSERT_NO_FATAL_FAILURE(step(random));
      if (i % 8 == 0) {
        ASSERT_NO_FATAL_FAILURE(look(random));
      }
    }
    for (const auto& segments : model_.segments)
      for (const auto& [address, of] : segments)
        if (Segment& segment = small_.segment(numbers_.at(address)); segment.aside)
          small_.open(segment, table_);
    for (Block* block : std::exchange(live_, {})) free(block);
    for (const auto& segments : model_.segments)
      for (const auto& [address, of] : segments) drop(numbers_.at(address));
    for (auto& segments : model_.segments) segments.clear();
    ASSERT_EQ(small_.blocks(), 0);
  }
}

TEST_F(SmallBlocksTest, a_live_block_is_found_while_others_come_and_go_beside_it) {
  add();
  std::vector<Block*> beside, live;
  for (int i = 0; i < 64; ++i) (i % 2 ? live : beside).push_back(make(16 * KiB));
  std::atomic<bool> over{false};
  std::atomic<uint64_t> found{0}, wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 2; ++seed)
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      while (!over) {
        Block* block = live[random() % live.size()];
        wrong += small_.at(0, block->address + random() % block->bytes, table_) != block;
        ++found;
      }
    });
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000 || found < 20000; ++i) {
    Block*& block = beside[random() % beside.size()];
    free(block);
    block = make(16 * KiB);
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
