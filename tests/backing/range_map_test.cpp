// RangeMap against a naive model: one flag per unit. FIRN_SEED=n replays a seed.
#include "firn/range_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/scarce_memory.h"

using firn::RangeMap;
using firn::test::memory_left;

namespace {

struct Model {
  std::vector<bool> free;  // one per unit

  void add(size_t units) { free.insert(free.end(), units, true); }
  /// Lengths of the maximal free runs, by their begin.
  std::vector<std::pair<size_t, size_t>> runs() const {
    std::vector<std::pair<size_t, size_t>> found;
    for (size_t i = 0; i < free.size(); ++i) {
      if (!free[i]) continue;
      size_t begin = i;
      while (i < free.size() && free[i]) ++i;
      found.emplace_back(begin, i - begin);
    }
    return found;
  }
  /// Begin of the shortest run that is long enough, the first of equals; SIZE_MAX when none is.
  size_t best(size_t units) const {
    size_t at = SIZE_MAX, least = SIZE_MAX;
    for (auto [begin, length] : runs())
      if (length >= units && length < least) {
        at = begin;
        least = length;
      }
    return at;
  }
  void set(size_t begin, size_t units, bool value) {
    for (size_t i = begin; i < begin + units; ++i) free[i] = value;
  }
};

/// The model's addresses begin at `base`.
void compare(const RangeMap& map, const Model& model, size_t base) {
  map.check();
  std::vector<std::pair<size_t, size_t>> held;
  size_t largest = 0;
  for (auto [begin, bytes] : map.free_ranges()) {
    held.emplace_back(begin - base, bytes);
    largest = std::max<size_t>(largest, bytes);
  }
  ASSERT_EQ(held, model.runs());
  ASSERT_EQ(map.largest(), largest);
  size_t length = model.free.size();
  size_t tail = 0;
  while (tail < length && model.free[length - 1 - tail]) ++tail;
  ASSERT_EQ(map.tail(base + length), tail);
}

void run(uint64_t seed) {
  SCOPED_TRACE("replay: FIRN_SEED=" + std::to_string(seed) +
               " range_map_test --gtest_filter=RangeMap.agrees_with_a_naive_model");
  std::mt19937_64 random(seed);
  const size_t base = random() % 2 * 4096;
  RangeMap map;
  Model model;
  std::vector<std::pair<size_t, size_t>> taken;
  size_t most = 1 + random() % 12;
  for (int step = 0; step < 150; ++step) {
    switch (random() % 8) {
      case 0: {
        size_t units = 1 + random() % 20;
        map.add(base + model.free.size(), units, true);
        model.add(units);
        break;
      }
      case 1:
      case 2:
      case 3:
      case 4: {
        size_t units = 1 + random() % most;
        auto begin = map.take(units);
        size_t expected = model.best(units);
        ASSERT_EQ(begin.has_value(), expected != SIZE_MAX);
        if (!begin) break;
        ASSERT_EQ(*begin, base + expected);
        model.set(expected, units, false);
        taken.emplace_back(expected, units);
        break;
      }
      default: {
        if (taken.empty()) break;
        std::swap(taken[random() % taken.size()], taken.back());
        auto [begin, units] = taken.back();
        taken.pop_back();
        map.release(base + begin, units);
        model.set(begin, units, true);
      }
    }
    compare(map, model, base);
    if (testing::Test::HasFatalFailure()) return;
  }
  for (auto [begin, units] : taken) map.release(base + begin, units);
  map.check();
  ASSERT_EQ(map.used(), 0u);
  ASSERT_EQ(map.total(), model.free.size());
  ASSERT_EQ(map.largest(), model.free.size());  // all of it one range again
}

}  // namespace

TEST(RangeMap, agrees_with_a_naive_model) {
  if (const char* seed = std::getenv("FIRN_SEED")) return run(std::strtoull(seed, nullptr, 10));
  for (uint64_t seed = 1; seed <= 1000 && !HasFatalFailure(); ++seed) run(seed);
}

TEST(RangeMap, nothing_is_taken_from_nothing) {
  RangeMap map;
  EXPECT_FALSE(map.take(1));
  map.add(0, 10);
  EXPECT_FALSE(map.take(11));
  EXPECT_FALSE(map.take(0));
  EXPECT_EQ(map.used(), 0u);
  EXPECT_EQ(map.largest(), 10u);
}

TEST(RangeMap, is_as_it_was_where_no_memory_is_left_to_add_to_it) {
  RangeMap map;
  for (const uint64_t begin : {0, 100, 300}) {  // alone, beside the last, alone
    for (long given = 0;; ++given) {            // with ever more memory
      const auto before = map.free_ranges();
      const uint64_t total = map.total();
      bool thrown = false;
      memory_left = given;
      try {
        map.add(begin, 100, true);
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
      memory_left = -1;
      map.check();
      if (!thrown) break;
      ASSERT_EQ(map.free_ranges(), before);
      ASSERT_EQ(map.total(), total);
    }
  }
  EXPECT_EQ(map.free_ranges(), (std::map<uint64_t, uint64_t>{{0, 200}, {300, 100}}));
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
        map.check();
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
  EXPECT_DEATH(map.release(25, 10), "freed twice");
  EXPECT_DEATH(map.release(25, 50), "release of 50 bytes, 30 used");
}
