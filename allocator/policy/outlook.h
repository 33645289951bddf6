// The period to come, as decide() wants it: the blocks that may move, those that will be born, and
// the steps that concern either. Its arrays are kept for reuse.
//
// Owns: those arrays. Lock: the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
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
  /// A block that is there. One whose next use is unknown is taken to be used in half a period. One
  /// that is freed, and kept for what is made from it, counts until then.
  void add(const Learner& learner, Block& block, lifetimes::Item item, bool assume) FIRN_HELD;
  /// A block of so many pages that has left, or is leaving, to be made again: it takes no memory
  /// until its next use.
  void add_dropped(const Learner& learner, const Block& block, uint64_t pages) FIRN_HELD;
  /// The block will be made again from `input`. Both were added before.
  void add_recipe(const Learner& learner, const Block& block, const Block& input) FIRN_HELD;
  /// Adds the events of the period to come. `pages_to_come`: those that a foreseen allocation will
  /// take. A block that left in the last period, to be made again, does so in this one: it dies
  /// behind the same use, and is born once more before the next, when its inputs are read, or made
  /// again themselves. Inputs that the program frees earlier live until then.
  void look_ahead(const Learner& learner,
                  const std::function<uint64_t(const History::Upcoming&)>& pages_to_come) FIRN_HELD;

  /// Of the first items, as they were when they were added; the others are not born yet.
  using Name = lifetimes::Named<Block*>;
  const std::vector<Name>& blocks() const { return blocks_; }
  const std::vector<lifetimes::Item>& items() const { return items_; }
  const std::vector<lifetimes::Step>& steps() const { return steps_; }
  /// With the uses in host memory.
  const std::vector<lifetimes::Step>& all_steps() const { return hosts_ ? all_steps_ : steps_; }
  bool has_host_uses() const { return hosts_; }
  /// Nanoseconds of device time from now to each step, never descending; `period_ns`: of all.
  std::vector<uint64_t> step_times(const History& history, uint64_t period_ns) const;

 private:
  /// A block, there or to come, at the event that look_ahead() has reached.
  struct Part {
    Identity identity = 0;       // that it plays, or played when it was freed; 0: unknown
    uint32_t item = none;        // none: it is not on the device, nor on the way
    uint64_t dropped = 0;        // pages that its next use makes again; or 0
    bool freed = false;          // by the program
    unsigned needed_by = 0;      // how many will be made from it
    std::vector<uint32_t> needs; // parts that it will be made from
  };
  static constexpr uint32_t none = UINT32_MAX;
  uint32_t& part_of(Identity identity) FIRN_HELD;
  uint32_t part_of(const Learner& learner, const Block& block) FIRN_HELD;
  uint32_t add_part(const Learner& learner, const Block& block) FIRN_HELD;
  void play(uint32_t part, Identity identity) FIRN_HELD;
  void step_aside(const History& history, Identity identity) FIRN_HELD;
  void need(uint32_t part, uint32_t input) FIRN_HELD;
  void need_inputs(const Learner& learner, uint32_t part, Identity identity) FIRN_HELD;
  void release_inputs(uint32_t part, uint64_t ahead) FIRN_HELD;
  void step(uint32_t part, lifetimes::Step::Kind kind, uint64_t ahead) FIRN_HELD;
  void foresee_host_uses(const Learner& learner) FIRN_HELD;
  void step_at_host(uint64_t ahead) FIRN_HELD;
  void bear(uint32_t part, uint64_t pages, uint64_t ahead) FIRN_HELD;
  void drop(uint32_t part, uint64_t ahead) FIRN_HELD;
  void make_again(uint32_t part, uint64_t ahead) FIRN_HELD;
  void free(uint32_t part, uint64_t ahead) FIRN_HELD;
  void end(uint32_t part, uint64_t ahead) FIRN_HELD;

  std::vector<Name> blocks_;
  std::vector<lifetimes::Item> items_;
  std::vector<lifetimes::Step> steps_, all_steps_;
  struct HostUse {
    uint64_t ahead;
    Identity identity;
    bool writes;
  };
  std::vector<HostUse> host_uses_;  // to come, in order
  size_t host_uses_passed_ = 0;     // by look_ahead()
  bool hosts_ = false;              // there are some
  std::vector<Part> parts_;
  std::vector<uint32_t> part_of_;   // by identity: the part that plays it; or none
  std::vector<uint32_t> first_of_;  // and the first item that played it
  std::unordered_map<const Block*, uint32_t> kept_;       // parts of blocks that are freed
  std::unordered_map<Identity, uint32_t> first_kept_of_;  // items that these began with
};

/// Pages of the block that stay on the device whatever is decided.
uint64_t immovable_pages(const Block& block) FIRN_HELD;
/// May a decision move the block, or count on its pages to leave?
bool may_move(const Block& block) FIRN_HELD;

}  // namespace firn
