// The published plan of migrations (greedy_plan.h) as a way to decide what an engine moves: made once
// in a period from measured device times and bandwidths, and carried out by the events at which its
// writes and reads are due. Where it exceeds the capacity, or the program does otherwise than it
// did, blocks leave by age and come back on demand.
#pragma once

#include <deque>
#include <unordered_set>
#include <vector>

#include "allocator/engine/baseline.h"
#include "allocator/lifetimes/events.h"

namespace firn::simulate {

class Greedy final : public Baseline {
 public:
  Then learn(EngineTiers& tiers, bool happened) override;
  bool has_plan() const override { return valid_; }
  bool carry_out(EngineTiers& tiers) override;
  bool came_out(const PieceRef& ref) override;
  std::optional<PieceRef> next_write() override;
  std::vector<PieceRef> give_up_writes() override;
  bool leaves_host(const Block& block) const override;
  uint64_t writes_from(const EngineTiers& tiers) const override;

 private:
  struct Trigger {
    uint64_t ahead;  // events after the plan was made
    lifetimes::Identity identity;
    bool write, to_store;
  };
  struct Due {
    Block* block;
    uint32_t generation;
    uint64_t age;  // a touch since makes it void
    bool to_store;
  };
  void plan(EngineTiers& tiers);
  void pull_triggers(EngineTiers& tiers);
  bool begin_writes(EngineTiers& tiers);
  bool begin_reads(EngineTiers& tiers);

  bool valid_ = false;
  uint64_t made_ = 0, period_ = 0;  // event number; events
  std::vector<Trigger> triggers_;   // in their order
  size_t next_ = 0;                 // the first trigger that is not due yet
  std::deque<Due> writes_, reads_;
  std::deque<PieceRef> store_bound_;  // copied out, to be written to the store at once
  std::unordered_set<const Block*> to_store_;  // not to stay in host memory
};

}  // namespace firn::simulate
