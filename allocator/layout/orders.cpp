// Locks: none.
#include "allocator/layout/orders.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <random>

namespace firn::layout {
namespace {

/// Ranks by the largest duration x log(sections) + size x log(bytes) + first x position in time,
/// disturbed by up to `chance` either way.
struct Weights {
  double duration, size, first, chance;
  SkylineChoice choice = SkylineChoice::rank;
};
constexpr SkylineChoice most = SkylineChoice::most_left, ends = SkylineChoice::most_left_at_ends;

// The best one differs by instance; those that won most often come first, and early one that takes
// half the time of the others.
constexpr Weights skyline_weights[] = {
    {0, 1, 0, 0, most}, {1, 1, 0, 0},         {1, 0, 0, 0, most}, {0, 0, -1, 0, most},
    {1, 1, 0, 0, most}, {0, 1, 0, 0, ends},   {1, 0.5, 0, 0, most}, {1, 0, 0, 0},
    {0, 1, 0, 0},       {0, 0, -1, 0},        {1, 1, 0, 0, ends},  {0.5, 1, 0, 0, most},
};
constexpr double skyline_chances[] = {0.1, 0.5, 0.2, 1, 2};

// Without any order, and with ones that chance may overrule.
constexpr Weights search_weights[] = {
    {0, 0, 0, 1}, {1, 1, 0, 3}, {0, 0, 0, 1}, {0, 0, 0, 1}, {1, 0, 0, 3}};

std::vector<uint32_t> ranked(const Problem& problem, const Weights& weights,
                             std::mt19937_64& random) {
  struct Key {
    double value;
    uint64_t size;
    uint32_t item;
  };
  const auto items = static_cast<uint32_t>(problem.items.size());
  const double sections = problem.sections();
  std::vector<Key> keys(items);
  for (uint32_t i = 0; i < items; ++i) {
    const Item& item = problem.items[i];
    double value = 0;
    if (weights.duration != 0) value += weights.duration * std::log(item.last - item.first);
    if (weights.size != 0) value += weights.size * std::log(static_cast<double>(item.size));
    if (weights.first != 0) value += weights.first * item.first / sections;
    if (weights.chance != 0)
      value += weights.chance * (static_cast<double>(random() >> 11) * 0x1p-52 - 1);
    keys[i] = {value, item.size, i};
  }
  std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) {
    if (a.value != b.value) return a.value > b.value;
    return a.size != b.size ? a.size > b.size : a.item < b.item;
  });
  std::vector<uint32_t> rank(items);
  for (uint32_t at = 0; at < items; ++at) rank[keys[at].item] = at;
  return rank;
}

}  // namespace

const uint64_t skyline_orders_fixed = std::size(skyline_weights);

Order skyline_order(const Problem& problem, uint64_t seed, uint64_t number) {
  std::seed_seq mixed{seed, seed >> 32, number, uint64_t{1}};
  std::mt19937_64 random(mixed);
  Weights weights = skyline_weights[number % skyline_orders_fixed];
  const uint64_t round = number / skyline_orders_fixed;
  if (round > 0) weights.chance = skyline_chances[(round - 1) % std::size(skyline_chances)];
  return {ranked(problem, weights, random), weights.choice};
}

std::vector<uint32_t> search_order(const Problem& problem, uint64_t seed, uint64_t number) {
  std::seed_seq mixed{seed, seed >> 32, number, uint64_t{2}};
  std::mt19937_64 random(mixed);
  return ranked(problem, search_weights[number % std::size(search_weights)], random);
}

}  // namespace firn::layout
