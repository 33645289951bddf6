// The period to come, as decide() wants it: the blocks that may move, those that will be born, and
// the steps that concern either. Its arrays are kept for reuse.
//
// Owns: those arrays. Lock: the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "allocator/lifetimes/carry_out.h"
#include "allocator/lifetimes/decide.h"
#include "allocator/policy/learner.h"
#include "firn/thread_safety.h"

namespace firn {

class Outlook {
 public:
  /// Begins anew: nothing is there.
  void clear();
  /// A block that is there. One whose next use is unknown is taken to be used in half a period.
  void add(const Learner& learner, Block& block, lifetimes::Item item, bool assume) FIRN_HELD;
  /// A block of so many pages that has left, or is leaving, to be made again: it takes no memory
  /// until its next use.
  void add_dropped(const Learner& learner, const Block& block, uint64_t pages) FIRN_HELD;
  /// Adds the events of the period to come. `pages_to_come`: those that a foreseen allocation will
  /// take. A block that left in the last period, to be made again, does so in this one: it dies
  /// behind the same use, and is born once more before the next.
  void look_ahead(const Learner& learner,
                  const std::function<uint64_t(const History::Upcoming&)>& pages_to_come) FIRN_HELD;

  /// Of the first items, as they were when they were added; the others are not born yet.
  using Name = lifetimes::Named<Block*>;
  const std::vector<Name>& blocks() const { return blocks_; }
  const std::vector<lifetimes::Item>& items() const { return items_; }
  const std::vector<lifetimes::Step>& steps() const { return steps_; }
  /// Nanoseconds of device time from now to each step, never descending; `period_ns`: of all.
  std::vector<uint64_t> step_times(const History& history, uint64_t period_ns) const;

 private:
  void make_room_for(Identity identity) FIRN_HELD;
  void bear(Identity identity, uint64_t ahead, uint64_t pages) FIRN_HELD;

  std::vector<Name> blocks_;
  std::vector<lifetimes::Item> items_;
  std::vector<lifetimes::Step> steps_;
  std::vector<uint32_t> item_of_;   // by identity: the item + 1 that plays it
  std::vector<uint32_t> first_of_;  // and the first that played it
  std::vector<uint64_t> dropped_;   // by identity: pages that its next use brings back; or 0
};

/// Pages of the block that stay on the device whatever is decided.
uint64_t immovable_pages(const Block& block) FIRN_HELD;
/// May a decision move the block, or count on its pages to leave?
bool may_move(const Block& block) FIRN_HELD;

}  // namespace firn
