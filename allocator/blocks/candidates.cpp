#include "allocator/blocks/candidates.h"

#include <utility>

namespace firn {

Block* Candidates::next(uint64_t now) {
  const auto rank = [&]() FIRN_HELD { order_.rank(live_, now, rules_.by, rules_.segments); };
  if (std::exchange(to_rank_, false)) rank();
  while (stayed_ <= live_.size()) {
    Block* block = order_.next();
    if (!block && rules_.again) {
      rank();
      block = order_.next();
    }
    if (!block) break;
    if (passes_over(*block)) continue;
    if (block != rules_.except) return block;
    if (std::exchange(met_except_, true)) break;  // everything else was tried
  }
  return nullptr;
}

bool Candidates::passes_over(const Block& block) {
  if (!rules_.aside_last || aside_ > live_.size() || !uses_.aside(block)) return false;
  ++aside_;
  return true;
}

}  // namespace firn
