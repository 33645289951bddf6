// Locks: none.
#include "allocator/layout/sweep.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace firn::layout {
namespace {

/// Free ranges below the highest address ever used.
class Holes {
 public:
  uint64_t allocate(uint64_t size) {
    const auto fits = by_size_.lower_bound({size, 0});
    if (fits != by_size_.end()) {
      const auto [hole_size, offset] = *fits;
      remove(offset, hole_size);
      if (hole_size > size) add(offset + size, hole_size - size);
      return offset;
    }
    uint64_t offset = top_;
    if (!by_offset_.empty()) {
      const auto [last, last_size] = *by_offset_.rbegin();
      if (last + last_size == top_) {
        remove(last, last_size);
        offset = last;
      }
    }
    top_ = offset + size;
    return offset;
  }
  void release(uint64_t offset, uint64_t size) {
    const auto after = by_offset_.lower_bound(offset);
    if (after != by_offset_.end() && after->first == offset + size) {
      size += after->second;
      remove(after->first, after->second);
    }
    const auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.begin()) {
      const auto [before, before_size] = *std::prev(next);
      if (before + before_size == offset) {
        remove(before, before_size);
        offset = before;
        size += before_size;
      }
    }
    add(offset, size);
  }

 private:
  void add(uint64_t offset, uint64_t size) {
    by_offset_.emplace(offset, size);
    by_size_.emplace(size, offset);
  }
  void remove(uint64_t offset, uint64_t size) {
    by_offset_.erase(offset);
    by_size_.erase({size, offset});
  }
  std::map<uint64_t, uint64_t> by_offset_;           // sizes
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // size, offset
  uint64_t top_ = 0;
};

}  // namespace

std::vector<uint64_t> sweep(const Problem& problem) {
  const std::vector<Item>& items = problem.items;
  std::vector<uint32_t> begins(items.size()), ends(items.size());
  std::iota(begins.begin(), begins.end(), 0u);
  std::iota(ends.begin(), ends.end(), 0u);
  std::sort(begins.begin(), begins.end(), [&](uint32_t a, uint32_t b) {
    if (items[a].first != items[b].first) return items[a].first < items[b].first;
    return items[a].size != items[b].size ? items[a].size > items[b].size : a < b;
  });
  std::sort(ends.begin(), ends.end(), [&](uint32_t a, uint32_t b) {
    return items[a].last != items[b].last ? items[a].last < items[b].last : a < b;
  });
  std::vector<uint64_t> offsets(items.size());
  Holes holes;
  size_t ended = 0;
  for (uint32_t item : begins) {
    for (; items[ends[ended]].last <= items[item].first; ++ended)
      holes.release(offsets[ends[ended]], items[ends[ended]].size);
    offsets[item] = holes.allocate(items[item].size);
  }
  return offsets;
}

}  // namespace firn::layout
