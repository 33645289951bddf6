// The room allocator against a naive model: one flag per unit of room. FIRN_SEED=n replays a seed.
#include "backing/store/free_ranges.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/scarce_memory.h"

namespace firn {
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

void compare(const FreeRanges& ranges, const Model& model) {
  ranges.check();
  std::vector<std::pair<size_t, size_t>> held;
  for (auto [offset, bytes] : ranges.ranges()) held.emplace_back(offset, bytes);
  ASSERT_EQ(held, model.runs());
  size_t length = model.free.size();
  size_t tail = 0;
  while (tail < length && model.free[length - 1 - tail]) ++tail;
  ASSERT_EQ(ranges.tail(length), tail);
}

void run(uint64_t seed) {
  SCOPED_TRACE("replay: FIRN_SEED=" + std::to_string(seed) +
               " free_ranges_test --gtest_filter=FreeRanges.follows_the_model");
  std::mt19937_64 random(seed);
  FreeRanges ranges;
  Model model;
  std::vector<std::pair<size_t, size_t>> taken;
  size_t most = 1 + random() % 12;
  for (int step = 0; step < 150; ++step) {
    switch (random() % 8) {
      case 0: {
        size_t units = 1 + random() % 20;
        ranges.give(model.free.size(), units);
        model.add(units);
        break;
      }
      case 1:
      case 2:
      case 3:
      case 4: {
        size_t units = 1 + random() % most;
        auto offset = ranges.take(units);
        size_t expected = model.best(units);
        ASSERT_EQ(offset.has_value(), expected != SIZE_MAX);
        if (!offset) break;
        ASSERT_EQ(*offset, expected);
        model.set(*offset, units, false);
        taken.emplace_back(*offset, units);
        break;
      }
      default: {
        if (taken.empty()) break;
        std::swap(taken[random() % taken.size()], taken.back());
        auto [offset, units] = taken.back();
        taken.pop_back();
        ranges.give(offset, units);
        model.set(offset, units, true);
      }
    }
    compare(ranges, model);
    if (testing::Test::HasFatalFailure()) return;
  }
  for (auto [offset, units] : taken) ranges.give(offset, units);
  ranges.check();
  ASSERT_EQ(ranges.free_bytes(), model.free.size());
  ASSERT_EQ(ranges.largest(), model.free.size());  // all of it one range again
}

TEST(FreeRanges, follows_the_model) {
  if (const char* seed = std::getenv("FIRN_SEED")) return run(std::strtoull(seed, nullptr, 10));
  for (uint64_t seed = 1; seed <= 1000 && !HasFatalFailure(); ++seed) run(seed);
}

/// With memory for no allocation, then for one, ...: `act` throws and changes nothing, until it has
/// enough.
template <class Act>
void with_ever_more_memory(FreeRanges& ranges, Act&& act) {
  for (long given = 0;; ++given) {
    const auto before = ranges.ranges();
    const uint64_t bytes = ranges.free_bytes();
    bool thrown = false;
    test::memory_left = given;
    try {
      act();
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    test::memory_left = -1;
    ranges.check();
    if (!thrown) return;
    ASSERT_EQ(ranges.ranges(), before);
    ASSERT_EQ(ranges.free_bytes(), bytes);
  }
}

TEST(FreeRanges, change_not_where_memory_lacks) {
  FreeRanges ranges;
  std::mt19937_64 random(11);
  std::vector<std::pair<uint64_t, uint64_t>> taken;
  with_ever_more_memory(ranges, [&] { ranges.give(0, 400); });
  for (int step = 0; step < 2000; ++step) {
    if (random() % 2) {
      const uint64_t units = 1 + random() % 9;
      std::optional<uint64_t> offset;
      with_ever_more_memory(ranges, [&] { offset = ranges.take(units); });
      if (offset) taken.emplace_back(*offset, units);
    } else if (!taken.empty()) {
      std::swap(taken[random() % taken.size()], taken.back());
      const auto [offset, units] = taken.back();
      taken.pop_back();
      with_ever_more_memory(ranges, [&, offset = offset, units = units] {
        ranges.give(offset, units);
      });
    }
    if (HasFatalFailure()) return;
  }
}

TEST(FreeRanges, nothing_is_taken_from_nothing) {
  FreeRanges ranges;
  EXPECT_FALSE(ranges.take(1));
  ranges.give(0, 10);
  EXPECT_FALSE(ranges.take(11));
  EXPECT_FALSE(ranges.take(0));
  EXPECT_EQ(ranges.free_bytes(), 10u);
}

TEST(FreeRangesDeath, giving_twice_aborts) {
  FreeRanges ranges;
  ranges.give(0, 10);
  EXPECT_DEATH(ranges.give(5, 2), "given twice");
  EXPECT_DEATH(ranges.give(0, 20), "given twice");
}

}  // namespace
}  // namespace firn
