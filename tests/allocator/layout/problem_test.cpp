// Sections say of any two buffers whether they live at once, and parts share none.
#include "allocator/layout/problem.h"

#include <set>

#include "allocator/layout/core.h"
#include "allocator/layout/fill.h"
#include "tests/allocator/layout/instance.h"

using namespace firn::layout;

namespace {

TEST(Problem, SectionsKeepWhoLivesWithWhom) {
  for (uint64_t seed : seeds(100)) {
    SCOPED_TRACE(replay(seed));
    const std::vector<Buffer> buffers = random_buffers(seed, 60);
    const Problem problem = make_problem(buffers);
    EXPECT_EQ(problem.load, examine(buffers).load.bytes);
    for (size_t i = 0; i < buffers.size(); ++i)
      for (size_t j = 0; j < i; ++j) {
        const Item &a = problem.items[i], &b = problem.items[j];
        EXPECT_EQ(a.first < b.last && b.first < a.last,
                  buffers[i].lower < buffers[j].upper && buffers[j].lower < buffers[i].upper);
      }
    if (HasFailure()) return;
  }
}

TEST(Problem, PartsAreWholeAndApart) {
  for (uint64_t seed : seeds(100)) {
    SCOPED_TRACE(replay(seed));
    const Problem problem = make_problem(random_buffers(seed, 40));
    std::set<uint32_t> seen;
    uint32_t end = 0;
    for (const std::vector<uint32_t>& part : independent_parts(problem)) {
      ASSERT_FALSE(part.empty());
      uint32_t next_end = end;
      for (uint32_t item : part) {
        EXPECT_TRUE(seen.insert(item).second);
        EXPECT_GE(problem.items[item].first, end);
        next_end = std::max(next_end, problem.items[item].last);
      }
      end = next_end;
    }
    EXPECT_EQ(seen.size(), problem.items.size());
  }
}

TEST(Problem, ManyAreSortedAsFewAre) {
  // Past the size at which times are sorted by digits, with times that use all of them.
  std::mt19937_64 random(11);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t lower = random() >> 1;
    buffers.push_back({lower, lower + 1 + (random() >> (8 + random() % 50)), 1 + random() % 9});
  }
  std::vector<std::pair<uint64_t, int64_t>> edges;
  for (const Buffer& buffer : buffers) {
    edges.emplace_back(buffer.lower, static_cast<int64_t>(buffer.size));
    edges.emplace_back(buffer.upper, -static_cast<int64_t>(buffer.size));
  }
  std::sort(edges.begin(), edges.end());
  int64_t alive = 0, load = 0;
  for (const auto& [time, bytes] : edges) load = std::max(load, alive += bytes);
  EXPECT_EQ(examine(buffers).load.bytes, static_cast<uint64_t>(load));
}

TEST(Core, WhatIsNotNearThePeakIsFilledIn) {
  const std::atomic<bool> stop{false};
  size_t found = 0;
  for (uint64_t seed : seeds(40)) {
    SCOPED_TRACE(replay(seed));
    const std::vector<Buffer> buffers = random_buffers(seed, 120);
    const Problem problem = make_problem(buffers);
    CoreSearch core(problem, stop);
    for (double nearness : {0.97, 0.8}) {
      const uint64_t height = problem.load + problem.load / 4;
      if (core.attempt(height, nearness, seed, 0) != Search::Outcome::found) continue;
      ++found;
      const uint64_t reached = height_of(problem, core.offsets());
      EXPECT_LE(reached, height);
      expect_valid(buffers, core.offsets(), reached);
    }
    if (HasFailure()) return;
  }
  if (!std::getenv("FIRN_SEED")) {
    EXPECT_GT(found, 20u);
  }
}

TEST(Fill, TakesTheLowestHoleThatHolds) {
  // By height: [0, 4) and [6, 10) are taken while the item lives; then one that does not.
  const std::vector<Buffer> buffers = {{0, 4, 4}, {1, 5, 4}, {9, 12, 50}, {2, 4, 2}, {2, 4, 3}};
  const Problem problem = make_problem(buffers);
  const Sections sections(problem);
  const std::atomic<bool> stop{false};
  std::vector<uint64_t> offsets = {0, 6, 0, nowhere, nowhere};
  const std::vector<uint32_t> order = {4, 3};
  EXPECT_TRUE(fill(problem, sections, order, 13, stop, offsets));
  EXPECT_EQ(offsets[4], 10u);
  EXPECT_EQ(offsets[3], 4u);
  offsets = {0, 6, 0, nowhere, nowhere};
  EXPECT_FALSE(fill(problem, sections, order, 12, stop, offsets));
}

}  // namespace
