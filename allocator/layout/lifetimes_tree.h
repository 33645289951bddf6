// Finds the best-ranked item whose lifetime lies wholly in a range of sections. A tree over the
// items in Morton order of (first, last); each node holds the box of lifetimes and the best rank of
// the items below it that are not yet taken.
// Owns: its arrays. Locks: none; the shape is shared, read only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "allocator/layout/problem.h"

namespace firn::layout {

/// The part that stays the same as items are taken. O(n log n).
class LifetimesShape {
 public:
  explicit LifetimesShape(const Problem& problem);

 private:
  friend class LifetimesTree;
  static constexpr uint32_t leaf_items = 8;
  uint32_t leaves_ = 1;              // a power of two
  std::vector<uint32_t> items_;      // in the tree's order
  std::vector<uint32_t> place_;      // of each item in it
  std::vector<Item> lifetimes_;      // in the tree's order
};

class LifetimesTree {
 public:
  static constexpr uint32_t none = 0xffffffff;

  /// Lower ranks are better; they differ, and are below `none`. O(n).
  LifetimesTree(const LifetimesShape& shape, std::span<const uint32_t> rank);

  /// The best item not yet taken that lies in [begin, end); `none` without any.
  uint32_t best(uint32_t begin, uint32_t end) const;
  /// The same among items alive in both `from` and `to` as well, from <= to.
  uint32_t best_over(uint32_t begin, uint32_t end, uint32_t from, uint32_t to) const;
  /// The same among items that live in [begin, end) exactly.
  uint32_t best_filling(uint32_t begin, uint32_t end) const;
  void take(uint32_t item);

 private:
  struct Query {
    uint32_t begin, end, first_most, last_least;
  };
  /// Sums up the untaken items below it. Without any: `best` is none, the box is inside out.
  struct Node {
    uint32_t best = none;
    uint32_t first_min = none, first_max = 0, last_min = none, last_max = 0;
    void add(const Node& other);
    bool operator==(const Node&) const = default;
  };
  uint32_t find(const Query& query) const;
  Node leaf(uint32_t node) const;
  const LifetimesShape& shape_;
  std::vector<uint32_t> ranks_;  // in the tree's order; none: taken
  std::vector<Node> nodes_;      // node n has children 2n and 2n + 1; the root is 1
};

}  // namespace firn::layout
