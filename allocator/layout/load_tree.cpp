// Locks: none.
#include "allocator/layout/load_tree.h"

#include <algorithm>
#include <bit>

namespace firn::layout {

LoadTree::LoadTree(std::span<const uint64_t> loads)
    : leaves_(std::bit_ceil(static_cast<uint32_t>(std::max<size_t>(loads.size(), 1)))) {
  most_.assign(2 * size_t{leaves_}, 0);
  taken_.assign(2 * size_t{leaves_}, 0);
  std::copy(loads.begin(), loads.end(), most_.begin() + leaves_);
  for (uint32_t node = leaves_ - 1; node > 0; --node)
    most_[node] = std::max(most_[2 * node], most_[2 * node + 1]);
}

void LoadTree::take(uint32_t begin, uint32_t end, uint64_t bytes) {
  const auto take_whole = [&](uint32_t node) {
    most_[node] -= bytes;
    taken_[node] += bytes;
  };
  const auto renew = [&](uint32_t node) {
    for (node /= 2; node > 0; node /= 2)
      most_[node] = std::max(most_[2 * node], most_[2 * node + 1]) - taken_[node];
  };
  const uint32_t first = begin + leaves_, last = end - 1 + leaves_;
  for (uint32_t left = first, right = last + 1; left < right; left /= 2, right /= 2) {
    if (left & 1) take_whole(left++);
    if (right & 1) take_whole(--right);
  }
  renew(first);
  renew(last);
}

LoadTree::Most LoadTree::most(uint32_t begin, uint32_t end) const {
  // Down from the root along the borders of the range, with what was taken on the way.
  struct Visit {
    uint32_t node, begin, end;
    uint64_t taken;
  };
  Visit stack[64];
  uint32_t depth = 0;
  Most found{0, begin};
  stack[depth++] = {1, 0, leaves_, 0};
  while (depth > 0) {
    Visit visit = stack[--depth];
    if (most_[visit.node] - visit.taken <= found.bytes) continue;
    if (visit.begin >= begin && visit.end <= end) {
      // The largest is in here: straight down to it.
      found.bytes = most_[visit.node] - visit.taken;
      uint32_t node = visit.node;
      while (node < leaves_)
        node = most_[2 * node] >= most_[2 * node + 1] ? 2 * node : 2 * node + 1;
      found.section = node - leaves_;
      continue;
    }
    const uint32_t middle = visit.begin + (visit.end - visit.begin) / 2;
    const uint64_t taken = visit.taken + taken_[visit.node];
    if (middle < end) stack[depth++] = {2 * visit.node + 1, middle, visit.end, taken};
    if (middle > begin) stack[depth++] = {2 * visit.node, visit.begin, middle, taken};
  }
  return found;
}

}  // namespace firn::layout
