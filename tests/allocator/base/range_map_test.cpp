// RangeMap against a naive model: a byte map of what is taken.
#include "allocator/base/range_map.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/scarce_memory.h"

using firn::RangeMap;
using firn::test::memory_left;

TEST(RangeMap, agrees_with_a_naive_model) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    constexpr uint64_t size = 512, base = 4096;
    RangeMap map;
    map.add(base, size);
    std::vector<bool> taken(size);
    std::vector<std::pair<uint64_t, uint64_t>> ranges;
    for (int i = 0; i < 400; ++i) {
      if (random() % 2 == 0) {
        uint64_t bytes = 1 + random() % 60, run = 0, longest = 0;
        for (uint64_t at = 0; at < size; ++at)
          longest = std::max(longest, run = taken[at] ? 0 : run + 1);
        auto begin = map.take(bytes);
        ASSERT_EQ(begin.has_value(), longest >= bytes);
        ASSERT_EQ(map.largest() <= longest, true);
        if (!begin) continue;
        for (uint64_t at = *begin - base; at < *begin - base + bytes; ++at) {
          ASSERT_FALSE(taken[at]);
          taken[at] = true;
        }
        ranges.push_back({*begin, bytes});
      } else if (!ranges.empty()) {
        size_t which = random() % ranges.size();
        auto [begin, bytes] = ranges[which];
        ranges.erase(ranges.begin() + static_cast<ptrdiff_t>(which));
        map.release(begin, bytes);
        for (uint64_t at = begin - base; at < begin - base + bytes; ++at) taken[at] = false;
      }
    }
    for (auto [begin, bytes] : ranges) map.release(begin, bytes);
    ASSERT_EQ(map.used(), 0u);
    ASSERT_EQ(map.free_ranges().size(), 1u);
    ASSERT_EQ(map.largest(), size);
  }
}

TEST(RangeMap, a_range_is_given_back_without_memory) {
  RangeMap map;
  map.add(0, 400);
  std::mt19937_64 random(11);
  std::vector<std::pair<uint64_t, uint64_t>> taken;
  for (int step = 0; step < 2000; ++step) {
    if (random() % 2) {
      const uint64_t bytes = 1 + random() % 9, used = map.used();
      for (long given = 0;; ++given) {  // with ever more memory
        const auto before = map.free_ranges();
        bool thrown = false;
        std::optional<uint64_t> begin;
        memory_left = given;
        try {
          begin = map.take(bytes);
        } catch (const std::bad_alloc&) {
          thrown = true;
        }
        memory_left = -1;
        if (!thrown) {
          if (begin) taken.push_back({*begin, bytes});
          break;
        }
        ASSERT_EQ(map.free_ranges(), before);
        ASSERT_EQ(map.used(), used);
      }
    } else if (!taken.empty()) {
      std::swap(taken[random() % taken.size()], taken.back());
      const auto [begin, bytes] = taken.back();
      taken.pop_back();
      memory_left = 0;
      EXPECT_NO_THROW(map.release(begin, bytes));
      memory_left = -1;
      if (HasFailure()) return;
    }
  }
  for (auto [begin, bytes] : taken) map.release(begin, bytes);
  EXPECT_EQ(map.free_ranges().size(), 1u);
  EXPECT_EQ(map.largest(), 400u);
}

TEST(RangeMap, keeps_segments_apart_at_a_barrier) {
  RangeMap map;
  map.add(0, 100);
  map.add(100, 100);
  auto a = map.take(100), b = map.take(100);
  ASSERT_TRUE(a && b);
  map.release(*a, 100, 100);
  map.release(*b, 100, 100);
  EXPECT_EQ(map.free_ranges().size(), 2u);
  EXPECT_TRUE(map.remove(100, 100));
  EXPECT_FALSE(map.remove(100, 100));
  EXPECT_EQ(map.total(), 100u);
}

TEST(RangeMapDeathTest, a_range_freed_twice_aborts) {
  RangeMap map;
  map.add(0, 100);
  (void)map.take(60);
  map.release(0, 30);
  EXPECT_DEATH(map.release(0, 30), "freed twice");
}
