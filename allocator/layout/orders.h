// Orders of items for the greedy skyline and for the exact search: a list of known good ones, then
// the same ones disturbed by chance, without end. An order's number and the seed determine it.
// Owns: nothing. Locks: none.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/layout/problem.h"
#include "allocator/layout/skyline.h"

namespace firn::layout {

/// A permutation: rank[item], lower first.
struct Order {
  std::vector<uint32_t> rank;
  SkylineChoice choice = SkylineChoice::rank;
};

/// The `number`th order for the greedy skyline.
Order skyline_order(const Problem& problem, uint64_t seed, uint64_t number);
/// How many of them involve no chance.
extern const uint64_t skyline_orders_fixed;

/// The `number`th order for the exact search.
std::vector<uint32_t> search_order(const Problem& problem, uint64_t seed, uint64_t number);

}  // namespace firn::layout
