// Locks: none.
#include "allocator/layout/core.h"

#include <algorithm>
#include <bit>

#include "allocator/layout/fill.h"
#include "allocator/layout/orders.h"

namespace firn::layout {
namespace {

constexpr uint64_t fewest_every = 3;

/// Branches of an attempt: 1.5 per item, at times more, so that in the end everything is tried.
uint64_t branches_of(size_t items, uint64_t number) {
  constexpr uint64_t longer_every = 8, doublings_max = 40;
  uint64_t branches = items + items / 2 + 16;
  if (number % longer_every == longer_every - 1) {
    const auto doublings = static_cast<uint64_t>(std::countr_zero(number / longer_every + 1)) + 1;
    branches <<= std::min(doublings, doublings_max);
  }
  return branches;
}

}  // namespace

CoreSearch::CoreSearch(const Problem& problem, const std::atomic<bool>& stop)
    : problem_(problem), stop_(stop), sections_(problem) {}

CoreSearch::Core& CoreSearch::core_of(double nearness) {
  const auto [found, is_new] = cores_.try_emplace(nearness);
  Core& core = found->second;
  if (!is_new) return core;
  const auto least = static_cast<uint64_t>(static_cast<double>(problem_.load) * nearness);
  std::vector<uint32_t> near_before(problem_.sections() + 1, 0);  // sections near the peak
  for (uint32_t s = 0; s < problem_.sections(); ++s)
    near_before[s + 1] = near_before[s] + (problem_.loads[s] >= least);
  for (uint32_t i = 0; i < problem_.items.size(); ++i) {
    const Item& item = problem_.items[i];
    (near_before[item.last] > near_before[item.first] ? core.items : core.others).push_back(i);
  }
  std::stable_sort(core.others.begin(), core.others.end(), [&](uint32_t a, uint32_t b) {
    return problem_.items[a].size > problem_.items[b].size;
  });
  if (core.items.size() > items_max) return core;
  core.problem = make_part(problem_, core.items);
  core.search = std::make_unique<Search>(core.problem, stop_);
  return core;
}

Search::Outcome CoreSearch::attempt(uint64_t height, double nearness, uint64_t seed,
                                    uint64_t number) {
  Core& core = core_of(nearness);
  if (!core.search) return Search::Outcome::gave_up;
  const Search::Outcome outcome =
      core.search->attempt(height, search_order(core.problem, seed, number),
                           number % fewest_every == 1 ? Search::Branching::fewest
                                                      : Search::Branching::smallest_share,
                           branches_of(core.items.size(), number));
  if (outcome != Search::Outcome::found) return outcome;
  offsets_.assign(problem_.items.size(), nowhere);
  for (size_t i = 0; i < core.items.size(); ++i)
    offsets_[core.items[i]] = core.search->offsets()[i];
  const bool filled = fill(problem_, sections_, core.others, height, stop_, offsets_);
  return filled ? outcome : Search::Outcome::gave_up;
}

}  // namespace firn::layout
