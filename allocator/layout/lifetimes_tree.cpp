// Locks: none.
#include "allocator/layout/lifetimes_tree.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

namespace firn::layout {
namespace {

/// Bits of `value` at the even positions.
uint64_t spread(uint64_t value) {
  value = (value | value << 16) & 0x0000ffff0000ffff;
  value = (value | value << 8) & 0x00ff00ff00ff00ff;
  value = (value | value << 4) & 0x0f0f0f0f0f0f0f0f;
  value = (value | value << 2) & 0x3333333333333333;
  return (value | value << 1) & 0x5555555555555555;
}

}  // namespace

LifetimesShape::LifetimesShape(const Problem& problem) {
  const size_t items = problem.items.size();
  struct Point {
    uint64_t code;
    uint32_t item;
  };
  std::vector<Point> points(items);
  for (uint32_t i = 0; i < items; ++i) {
    const Item& item = problem.items[i];
    points[i] = {spread(item.first) << 1 | spread(item.last), i};
  }
  std::sort(points.begin(), points.end(), [](const Point& a, const Point& b) {
    return a.code != b.code ? a.code < b.code : a.item < b.item;
  });
  leaves_ = static_cast<uint32_t>(std::bit_ceil((items + leaf_items - 1) / leaf_items + 1));
  items_.resize(items);
  place_.resize(items);
  lifetimes_.resize(items);
  for (uint32_t at = 0; at < items; ++at) {
    items_[at] = points[at].item;
    place_[points[at].item] = at;
    lifetimes_[at] = problem.items[points[at].item];
  }
}

void LifetimesTree::Node::add(const Node& other) {
  best = std::min(best, other.best);
  first_min = std::min(first_min, other.first_min);
  first_max = std::max(first_max, other.first_max);
  last_min = std::min(last_min, other.last_min);
  last_max = std::max(last_max, other.last_max);
}

LifetimesTree::Node LifetimesTree::leaf(uint32_t node) const {
  const size_t begin = size_t{node - shape_.leaves_} * LifetimesShape::leaf_items;
  const size_t end = std::min(begin + LifetimesShape::leaf_items, ranks_.size());
  Node found;
  for (size_t at = begin; at < end; ++at) {
    if (ranks_[at] == none) continue;
    const Item& item = shape_.lifetimes_[at];
    found.add({ranks_[at], item.first, item.first, item.last, item.last});
  }
  return found;
}

LifetimesTree::LifetimesTree(const LifetimesShape& shape, std::span<const uint32_t> rank)
    : shape_(shape), ranks_(rank.size()), nodes_(2 * size_t{shape.leaves_}) {
  for (uint32_t at = 0; at < ranks_.size(); ++at) ranks_[at] = rank[shape.items_[at]];
  for (uint32_t node = shape.leaves_; node < nodes_.size(); ++node) nodes_[node] = leaf(node);
  for (uint32_t node = shape.leaves_ - 1; node > 0; --node) {
    nodes_[node] = nodes_[2 * node];
    nodes_[node].add(nodes_[2 * node + 1]);
  }
}

uint32_t LifetimesTree::best(uint32_t begin, uint32_t end) const {
  return find({begin, end, none, 0});
}

uint32_t LifetimesTree::best_over(uint32_t begin, uint32_t end, uint32_t from,
                                  uint32_t to) const {
  return find({begin, end, from, to + 1});
}

uint32_t LifetimesTree::best_filling(uint32_t begin, uint32_t end) const {
  return find({begin, end, begin, end});
}

uint32_t LifetimesTree::find(const Query& query) const {
  std::array<uint32_t, 64> stack;  // at most one node of each level waits
  uint32_t depth = 0, best_rank = none, best_item = none;
  const auto may = [&](const Node& node) {
    return node.best < best_rank && node.first_max >= query.begin && node.last_min <= query.end &&
           node.first_min <= query.first_most && node.last_max >= query.last_least;
  };
  if (may(nodes_[1])) stack[depth++] = 1;
  while (depth > 0) {
    uint32_t node = stack[--depth];
    if (nodes_[node].best >= best_rank) continue;
    while (node < shape_.leaves_) {
      uint32_t next = 2 * node, other = 2 * node + 1;
      if (nodes_[other].best < nodes_[next].best) std::swap(next, other);
      const bool there = may(nodes_[next]);
      if (may(nodes_[other])) {
        if (there) stack[depth++] = other;
        else next = other;
      } else if (!there) {
        next = 0;
      }
      node = next;
      if (node == 0) break;
    }
    if (node == 0) continue;
    const size_t begin = size_t{node - shape_.leaves_} * LifetimesShape::leaf_items;
    const size_t end = std::min(begin + LifetimesShape::leaf_items, ranks_.size());
    for (size_t at = begin; at < end; ++at) {
      const Item& item = shape_.lifetimes_[at];
      if (ranks_[at] < best_rank && item.first >= query.begin && item.last <= query.end &&
          item.first <= query.first_most && item.last >= query.last_least) {
        best_rank = ranks_[at];
        best_item = shape_.items_[at];
      }
    }
  }
  return best_item;
}

void LifetimesTree::take(uint32_t item) {
  const uint32_t at = shape_.place_[item];
  ranks_[at] = none;
  uint32_t node = shape_.leaves_ + at / LifetimesShape::leaf_items;
  nodes_[node] = leaf(node);
  for (node /= 2; node > 0; node /= 2) {
    Node both = nodes_[2 * node];
    both.add(nodes_[2 * node + 1]);
    if (both == nodes_[node]) break;
    nodes_[node] = both;
  }
}

}  // namespace firn::layout
