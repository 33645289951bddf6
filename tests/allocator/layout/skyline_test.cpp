// The greedy skyline and what it looks up, against naive versions.
#include "allocator/layout/skyline.h"

#include <numeric>

#include "allocator/layout/load_tree.h"
#include "allocator/layout/orders.h"
#include "allocator/layout/sweep.h"
#include "tests/allocator/layout/instance.h"

using namespace firn::layout;

namespace {

TEST(Skyline, EveryOrderAndChoiceGivesALayout) {
  const std::atomic<bool> stop{false};
  for (uint64_t seed : seeds(60)) {
    SCOPED_TRACE(replay(seed));
    const std::vector<Buffer> buffers = random_buffers(seed, 200);
    const Problem problem = make_problem(buffers);
    const LifetimesShape shape(problem);
    for (uint64_t number = 0; number < skyline_orders_fixed + 3; ++number) {
      const Order order = skyline_order(problem, seed, number);
      const std::vector<uint64_t> offsets =
          run_skyline(problem, shape, {order.rank, order.choice, ~uint64_t{0}}, stop);
      const uint64_t height = height_of(problem, offsets);
      expect_valid(buffers, offsets, height);
      // A bound that is just reached is of no use; one above it changes nothing.
      EXPECT_TRUE(run_skyline(problem, shape, {order.rank, order.choice, height}, stop).empty());
      EXPECT_EQ(run_skyline(problem, shape, {order.rank, order.choice, height + 1}, stop),
                offsets);
    }
    if (HasFailure()) return;
  }
}

TEST(Sweep, IsALayout) {
  for (uint64_t seed : seeds(100)) {
    SCOPED_TRACE(replay(seed));
    const std::vector<Buffer> buffers = random_buffers(seed, 300);
    const Problem problem = make_problem(buffers);
    const std::vector<uint64_t> offsets = sweep(problem);
    expect_valid(buffers, offsets, height_of(problem, offsets));
  }
}

TEST(LifetimesTree, FindsTheBestOfARange) {
  for (uint64_t seed : seeds(30)) {
    SCOPED_TRACE(replay(seed));
    std::mt19937_64 random(seed);
    const Problem problem = make_problem(random_buffers(seed, 200));
    const auto items = static_cast<uint32_t>(problem.items.size());
    std::vector<uint32_t> rank(items);
    std::iota(rank.begin(), rank.end(), 0u);
    std::shuffle(rank.begin(), rank.end(), random);
    const LifetimesShape shape(problem);
    LifetimesTree tree(shape, rank);
    std::vector<bool> taken(items, false);
    for (int query = 0; query < 200; ++query) {
      const auto begin = static_cast<uint32_t>(random() % problem.sections());
      const auto end = begin + 1 + static_cast<uint32_t>(random() % (problem.sections() - begin));
      const auto from = begin + static_cast<uint32_t>(random() % (end - begin));
      const auto to = from + static_cast<uint32_t>(random() % (end - from));
      const auto naive = [&](auto&& wanted) {
        uint32_t best = LifetimesTree::none;
        for (uint32_t i = 0; i < items; ++i)
          if (!taken[i] && problem.items[i].first >= begin && problem.items[i].last <= end &&
              wanted(problem.items[i]) &&
              (best == LifetimesTree::none || rank[i] < rank[best]))
            best = i;
        return best;
      };
      const uint32_t best = naive([](const Item&) { return true; });
      EXPECT_EQ(tree.best(begin, end), best);
      EXPECT_EQ(tree.best_over(begin, end, from, to),
                naive([&](const Item& item) { return item.first <= from && to < item.last; }));
      EXPECT_EQ(tree.best_filling(begin, end), naive([&](const Item& item) {
                  return item.first == begin && item.last == end;
                }));
      if (best == LifetimesTree::none) continue;
      tree.take(best);
      taken[best] = true;
    }
    if (HasFailure()) return;
  }
}

TEST(LoadTree, FindsTheMostOfARange) {
  for (uint64_t seed : seeds(30)) {
    SCOPED_TRACE(replay(seed));
    std::mt19937_64 random(seed);
    std::vector<uint64_t> loads(1 + random() % 100);
    for (uint64_t& load : loads) load = random() % 1000;
    LoadTree tree(loads);
    for (int query = 0; query < 200; ++query) {
      const size_t begin = random() % loads.size();
      const size_t end = begin + 1 + random() % (loads.size() - begin);
      const auto first = loads.begin() + static_cast<ptrdiff_t>(begin);
      const auto last = loads.begin() + static_cast<ptrdiff_t>(end);
      const LoadTree::Most most =
          tree.most(static_cast<uint32_t>(begin), static_cast<uint32_t>(end));
      EXPECT_EQ(most.bytes, *std::max_element(first, last));
      EXPECT_EQ(loads[most.section], most.bytes);
      EXPECT_TRUE(most.section >= begin && most.section < end);
      const uint64_t taken = random() % (*std::min_element(first, last) + 1) / 2;
      tree.take(static_cast<uint32_t>(begin), static_cast<uint32_t>(end), taken);
      for (auto load = first; load != last; ++load) *load -= taken;
    }
    if (HasFailure()) return;
  }
}

}  // namespace
