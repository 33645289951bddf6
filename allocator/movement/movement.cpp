// The rounds, and what the ways share.
#include "allocator/movement/movement.h"

#include "allocator/blocks/each_of.h"

namespace firn {

Movement::Movement(const Parts& parts)
    : owner_(parts.owner), options_(parts.options), driver_(parts.driver), health_(parts.health),
      clock_(parts.clock), store_(parts.store), host_(parts.host), streams_(parts.streams),
      uses_(parts.uses), transfers_(parts.transfers), mapper_(parts.mapper) {}

bool Movement::begin_round() {
  staging_wanted_ = false;  // set again by those that still want some
  const bool changed = store_ && reap_store();
  look_for_unanswered();
  return changed;
}

bool Movement::advance() {
  bool changed = false;
  each_of(spilling_, [&](Block& block) FIRN_HELD {
    advance_spill(block);
    changed |= block.state() != State::spilling || finish_spill(block);
  });
  each_of(faulting_, [this](Block& block) FIRN_HELD { advance_fault(block); });
  for (HostUse* use : std::vector<HostUse*>(gathering_)) gather(*use);
  return changed;
}

Moved Movement::moved() const {
  Moved moved = moved_;
  moved.summed_bytes = sums_.bytes();
  return moved;
}

const char* Movement::no_store() const {
  return store_ ? "the spill files take no more (firn_dir, firn_store_size)" : "no firn_dir is set";
}

}  // namespace firn
