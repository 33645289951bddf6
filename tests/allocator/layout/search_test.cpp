// The exact search alone: what it finds is a layout, what it says is impossible is impossible.
#include "allocator/layout/search.h"

#include <numeric>

#include "allocator/layout/orders.h"
#include "tests/allocator/layout/instance.h"

using namespace firn::layout;

namespace {

constexpr uint64_t all_branches = ~uint64_t{0};

TEST(Search, FindsOrProves) {
  const std::atomic<bool> stop{false};
  for (uint64_t seed : seeds(200)) {
    SCOPED_TRACE(replay(seed));
    const std::vector<Buffer> buffers = seed % 20 == 0 ? above_load(seed) : random_buffers(seed, 7);
    const uint64_t optimum = BruteForce(buffers).height();
    const Problem problem = make_problem(buffers);
    Search search(problem, stop);
    for (const auto branching : {Search::Branching::fewest, Search::Branching::smallest_share})
      for (uint64_t number = 0; number < 3; ++number) {
        const std::vector<uint32_t> rank = search_order(problem, seed, number);
        ASSERT_EQ(search.attempt(optimum, rank, branching, all_branches), Search::Outcome::found);
        expect_valid(buffers, search.offsets(), optimum);
        if (optimum == problem.load) continue;
        EXPECT_EQ(search.attempt(optimum - 1, rank, branching, all_branches),
                  Search::Outcome::none);
      }
    if (HasFailure()) return;
  }
}

TEST(Search, FindsWhatExistsInEveryOrder) {
  // Nothing to spare anywhere: what is cut off wrongly is missed.
  const std::atomic<bool> stop{false};
  for (uint64_t seed : seeds(150)) {
    SCOPED_TRACE(replay(seed));
    const std::vector<Buffer> buffers = dissection(seed, 10 + seed % 30, 1 << 10);
    const Problem problem = make_problem(buffers);
    Search search(problem, stop);
    for (const auto branching : {Search::Branching::fewest, Search::Branching::smallest_share})
      for (uint64_t number = 0; number < 5; ++number) {
        ASSERT_EQ(search.attempt(problem.load, search_order(problem, seed, number), branching,
                                 all_branches),
                  Search::Outcome::found);
        expect_valid(buffers, search.offsets(), problem.load);
      }
    if (HasFailure()) return;
  }
}

TEST(Search, WhatItSaysIsImpossibleIs) {
  // Hardly any has its optimum above the load: brute force is for those that are said to.
  const std::atomic<bool> stop{false};
  for (uint64_t seed : seeds(8000)) {
    SCOPED_TRACE(replay(seed));
    std::mt19937_64 random(seed);
    const uint64_t times = 4 + random() % 6, sizes = 2 + random() % 4;
    std::vector<Buffer> buffers(10);
    for (Buffer& buffer : buffers) {
      buffer.lower = random() % times;
      buffer.upper = buffer.lower + 1 + random() % 3;
      buffer.size = 1 + random() % sizes;
    }
    const Problem problem = make_problem(buffers);
    Search search(problem, stop);
    for (const auto branching : {Search::Branching::fewest, Search::Branching::smallest_share}) {
      const Search::Outcome outcome =
          search.attempt(problem.load, search_order(problem, seed, 0), branching, all_branches);
      if (outcome != Search::Outcome::none) continue;
      EXPECT_GT(BruteForce(buffers).height(), problem.load);
    }
    if (HasFailure()) return;
  }
}

TEST(Search, GivesUpWhereItMust) {
  const std::vector<Buffer> buffers = dissection(3, 400, 1 << 20);
  const Problem problem = make_problem(buffers);
  std::atomic<bool> stop{false};
  Search search(problem, stop);
  const std::vector<uint32_t> rank = search_order(problem, 1, 0);
  EXPECT_EQ(search.attempt(problem.load, rank, Search::Branching::fewest, 3),
            Search::Outcome::gave_up);
  stop = true;
  EXPECT_EQ(search.attempt(problem.load, rank, Search::Branching::fewest, all_branches),
            Search::Outcome::gave_up);
}

TEST(Search, AnAttemptLeavesNothingBehind) {
  const std::vector<Buffer> buffers = dissection(4, 60, 1 << 16);
  const Problem problem = make_problem(buffers);
  const std::atomic<bool> stop{false};
  Search used(problem, stop), fresh(problem, stop);
  for (uint64_t number = 0; number < 20; ++number)
    (void)used.attempt(problem.load, search_order(problem, 2, number), Search::Branching::fewest,
                       number * 7);
  const std::vector<uint32_t> rank = search_order(problem, 2, 50);
  for (Search* search : {&used, &fresh})
    ASSERT_EQ(search->attempt(problem.load, rank, Search::Branching::smallest_share, all_branches),
              Search::Outcome::found);
  EXPECT_TRUE(std::equal(used.offsets().begin(), used.offsets().end(), fresh.offsets().begin()));
}

}  // namespace
