#include "allocator/blocks/age_order.h"

#include <algorithm>

#include "allocator/base/age_score.h"

namespace firn {

void AgeOrder::rank(const std::vector<Block*>& live, uint64_t now, By by, bool segments) {
  heap_.clear();
  for (Block* block : live) {
    uint64_t w = block->word.load(std::memory_order_acquire);
    if (!may_leave(*block, w) || (block->segment != 0 && !segments)) continue;
    uint64_t age = block->age.load(std::memory_order_relaxed);
    const uint64_t unused = now - std::min(now, age);
    const double score = by == By::age ? static_cast<double>(unused)
                                       : age_score(unused, block->mapped,
                                                   block->by_recipe ||
                                                       ((w & word::copies) && clean(*block)));
    heap_.push_back({score, block, age});
  }
  std::make_heap(heap_.begin(), heap_.end());
}

Block* AgeOrder::next() {
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end());
    const Candidate candidate = heap_.back();
    heap_.pop_back();
    if (may_leave(*candidate.block, candidate.block->word.load(std::memory_order_acquire)) &&
        candidate.block->age.load(std::memory_order_relaxed) == candidate.age)
      return candidate.block;
  }
  return nullptr;
}

}  // namespace firn
