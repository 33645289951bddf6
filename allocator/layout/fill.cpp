// Locks: none.
#include "allocator/layout/fill.h"

#include <algorithm>
#include <utility>

namespace firn::layout {

bool fill(const Problem& problem, const Sections& sections, std::span<const uint32_t> order,
          uint64_t height, const std::atomic<bool>& stop, std::vector<uint64_t>& offsets) {
  std::vector<std::pair<uint64_t, uint64_t>> taken;  // [first, second) of those alive with one
  for (const uint32_t index : order) {
    if (stop.load(std::memory_order_relaxed)) return false;
    const Item& item = problem.items[index];
    taken.clear();
    const auto add = [&](std::span<const uint32_t> others) {
      for (uint32_t other : others)
        if (offsets[other] != nowhere)
          taken.emplace_back(offsets[other], offsets[other] + problem.items[other].size);
    };
    add(sections.alive(item.first));
    for (uint32_t s = item.first + 1; s < item.last; ++s) add(sections.beginning(s));
    std::sort(taken.begin(), taken.end());
    uint64_t offset = 0;
    for (const auto& [begin, end] : taken) {
      if (begin >= offset && begin - offset >= item.size) break;
      offset = std::max(offset, end);
    }
    if (offset + item.size > height) return false;
    offsets[index] = offset;
  }
  return true;
}

}  // namespace firn::layout
