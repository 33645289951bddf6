#include "allocator/simulate/oracle.h"

#include <utility>

#include "allocator/engine/tiers.h"
#include "allocator/policy/learner.h"

namespace firn::simulate {

Baseline::Then Oracle::learn(EngineTiers& tiers, bool) {
  if (coming_.empty()) return Then::as_usual;
  std::vector<History::Planned> plan;
  for (const Coming& event : std::exchange(coming_, {})) {
    uint32_t block = History::plan_block + event.number;
    if (event.pointer) {
      const Block* live = tiers.live_at(event.pointer);
      block = live ? tiers.learner().life_of(*live) : 0;
      if (!block) continue;  // small, or never touched
    }
    plan.push_back({event.kind, block, tiers.pages_of(event.bytes) * page_bytes});
  }
  tiers.learner().history().preload(plan);
  return Then::decide_anew;
}

}  // namespace firn::simulate
