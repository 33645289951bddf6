// Locks: none.
#include "allocator/layout/lifetimes_tree.h"

#include <algorithm>
#include <array>
#include <bit>

namespace firn::layout {
namespace {

/// Bits of `value` at the even places.
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
  boxes_.assign(2 * size_t{leaves_}, {0xffffffff, 0, 0xffffffff, 0});
  for (uint32_t at = 0; at < items; ++at) {
    items_[at] = points[at].item;
    place_[points[at].item] = at;
    lifetimes_[at] = problem.items[points[at].item];
    const auto [first, last, size] = lifetimes_[at];
    Box& box = boxes_[leaves_ + at / leaf_items];
    box = {std::min(box.first_min, first), std::max(box.first_max, first),
           std::min(box.last_min, last), std::max(box.last_max, last)};
  }
  for (uint32_t node = leaves_ - 1; node > 0; --node) {
    const Box &a = boxes_[2 * node], &b = boxes_[2 * node + 1];
    boxes_[node] = {std::min(a.first_min, b.first_min), std::max(a.first_max, b.first_max),
                    std::min(a.last_min, b.last_min), std::max(a.last_max, b.last_max)};
  }
}

LifetimesTree::LifetimesTree(const LifetimesShape& shape, std::span<const uint32_t> rank)
    : shape_(shape), ranks_(rank.size()), best_(shape.boxes_.size(), none) {
  for (uint32_t at = 0; at < ranks_.size(); ++at) {
    ranks_[at] = rank[shape.items_[at]];
    uint32_t& best = best_[shape.leaves_ + at / LifetimesShape::leaf_items];
    best = std::min(best, ranks_[at]);
  }
  for (uint32_t node = shape.leaves_ - 1; node > 0; --node)
    best_[node] = std::min(best_[2 * node], best_[2 * node + 1]);
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
  for (uint32_t node = 1;;) {
    const LifetimesShape::Box& box = shape_.boxes_[node];
    const bool may = best_[node] < best_rank && box.first_max >= query.begin &&
                     box.last_min <= query.end && box.first_min <= query.first_most &&
                     box.last_max >= query.last_least;
    if (may && node < shape_.leaves_) {
      const uint32_t better = best_[2 * node] <= best_[2 * node + 1] ? 2 * node : 2 * node + 1;
      stack[depth++] = better ^ 1;
      node = better;
      continue;
    }
    if (may) {
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
    if (depth == 0) return best_item;
    node = stack[--depth];
  }
}

void LifetimesTree::take(uint32_t item) {
  const uint32_t at = shape_.place_[item];
  ranks_[at] = none;
  uint32_t node = shape_.leaves_ + at / LifetimesShape::leaf_items;
  const size_t begin = size_t{at} / LifetimesShape::leaf_items * LifetimesShape::leaf_items;
  const size_t end = std::min(begin + LifetimesShape::leaf_items, ranks_.size());
  best_[node] = *std::min_element(ranks_.begin() + static_cast<ptrdiff_t>(begin),
                                  ranks_.begin() + static_cast<ptrdiff_t>(end));
  for (node /= 2; node > 0; node /= 2) {
    const uint32_t best = std::min(best_[2 * node], best_[2 * node + 1]);
    if (best_[node] == best) break;
    best_[node] = best;
  }
}

}  // namespace firn::layout
