// The other way out: a block whose recipe stands, and that is chosen to be made again, leaves as a
// whole and without a copy, once every use of it is over. (Back: engine/fault.cpp.)
#include <vector>

#include "allocator/blocks/age_order.h"
#include "allocator/movement/movement.h"
#include "firn/canary.h"

namespace firn {

/// A copy of all of it is the better way back: it needs no input.
bool Movement::drops(const Block& block) {
  const State state = block.state();
  return block.by_recipe && (state == State::resident || state == State::spilling) &&
         block.mapped == block.pages && !clean(block);
}

bool Movement::start_drop(Block& block) {
  uint64_t w = block.word.load();
  do {
    if (!AgeOrder::may_leave(block, w)) return false;
  } while (!block.word.try_spill(w, block.address));
  drop_copies(block);  // (of parts)
  // (A block may be used on recorded streams until it is freed, without further reports.)
  if (w & word::recorded)
    for (uint16_t stream : block.recorded_streams) uses_.add(block, streams_.now(stream));
  owner_.leaves(block);
  block.leave = block.dropping = true;
  for (Span& span : block.spans) span.leaving = true;
  spilling_.push_back(&block);
  owner_.work_begins();
  trace("spill", block, "by recipe");
  return true;
}

void Movement::lose_with_input(Block& block, const Error& error) {
  block.fault_error = error;
  lose(block);
}

bool Movement::finish_drop(Block& block) {
  if (!uses_.over(block) && !FIRN_CANARY(45)) {
    (void)uses_.close(block);
    return false;
  }
  moved_.dropped_bytes += block.requested;
  if (mapper_.give_up(block)) owner_.work_begins();
  std::erase(spilling_, &block);
  block.dropping = false;
  block.pieces.clear();
  block.arrival = {};
  transit(block, Event::drop, word::unsettled | word::zero_copy);
  owner_.dropped(block);
  trace("dropped", block);
  return true;
}

}  // namespace firn
