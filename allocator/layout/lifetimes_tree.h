// Items by their lifetimes: which of those that lie wholly in a range of sections ranks first? A
// tree over the items in Morton order of (first, last), boxes of lifetimes in its nodes, the best
// rank below each node kept up to date as items are taken.
// Owns: its arrays. Locks: none; the shape is shared, read only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "allocator/layout/problem.h"

namespace firn::layout {

/// What does not change as items are taken. O(n log n).
class LifetimesShape {
 public:
  explicit LifetimesShape(const Problem& problem);

 private:
  friend class LifetimesTree;
  struct Box {
    uint32_t first_min, first_max, last_min, last_max;
  };
  static constexpr uint32_t leaf_items = 8;
  uint32_t leaves_ = 1;              // a power of two
  std::vector<uint32_t> items_;      // in the tree's order
  std::vector<uint32_t> place_;      // of each item in it
  std::vector<Item> lifetimes_;      // in the tree's order
  std::vector<Box> boxes_;           // node n has children 2n and 2n + 1; the root is 1
};

class LifetimesTree {
 public:
  static constexpr uint32_t none = 0xffffffff;

  /// Lower ranks are better; they differ, and are below `none`. O(n).
  LifetimesTree(const LifetimesShape& shape, std::span<const uint32_t> rank);

  /// The best item not yet taken that lies in [begin, end); `none` without any.
  uint32_t best(uint32_t begin, uint32_t end) const;
  /// The same of those alive in both `from` and `to` as well, from <= to.
  uint32_t best_over(uint32_t begin, uint32_t end, uint32_t from, uint32_t to) const;
  /// The same of those that live in [begin, end) exactly.
  uint32_t best_filling(uint32_t begin, uint32_t end) const;
  void take(uint32_t item);

 private:
  struct Query {
    uint32_t begin, end, first_most, last_least;
  };
  uint32_t find(const Query& query) const;
  const LifetimesShape& shape_;
  std::vector<uint32_t> ranks_;  // in the tree's order; none: taken
  std::vector<uint32_t> best_;   // of each node: the least of the ranks below it
};

}  // namespace firn::layout
