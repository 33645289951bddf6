#include "allocator/blocks/uses.h"

#include <algorithm>

#include "firn/canary.h"

namespace firn {

namespace {
Use last_of(const Block& block) { return Use{block.use.load(std::memory_order_acquire)}; }
}  // namespace

void Uses::add(Block& block, Use use) {
  if (!use || streams_.over(use)) return;
  for (Use& known : block.more_uses)
    if (known.stream() == use.stream()) {
      if (known.epoch() < use.epoch()) known = use;
      return;
    }
  block.more_uses.push_back(use);
  block.word.set(word::many_uses);
}

bool Uses::over(Block& block) {
  std::erase_if(block.more_uses, [this](Use use) { return streams_.over(use); });
  if (FIRN_CANARY(9)) block.more_uses.clear();
  if (block.more_uses.empty()) block.word.clear(word::many_uses);
  return block.more_uses.empty() && streams_.over(last_of(block)) && streams_.over(block.arrival);
}

bool Uses::over_but_on(Block& block, unsigned copies) {
  (void)over(block);
  for (Use use : block.more_uses)
    if (use.stream() != copies) return false;
  return streams_.over(last_of(block)) && streams_.over(block.arrival);
}

bool Uses::close(const Block& block) {
  bool all = true;
  const auto close = [&](Use use) FIRN_HELD {
    all &= streams_.over(use) || streams_.close(use);
  };
  for (Use use : block.more_uses) close(use);
  close(last_of(block));
  close(block.arrival);
  return all;
}

Result<void> Uses::order(unsigned stream, const Block& block) {
  Result<void> ordered;
  const auto order = [&](Use use) FIRN_HELD {
    if (Result<void> one = streams_.order(stream, use);
        !one && (ordered || ordered.error().code == Code::busy))
      ordered = one;
  };
  for (Use use : block.more_uses) order(use);
  order(last_of(block));
  order(block.arrival);
  return ordered;
}

bool Uses::aside(const Block& block) const {
  const auto aside = [this](Use use) FIRN_HELD {
    return use && streams_.aside(use.stream()) && !streams_.over(use);
  };
  return aside(last_of(block)) ||
         std::any_of(block.more_uses.begin(), block.more_uses.end(), aside);
}

}  // namespace firn
