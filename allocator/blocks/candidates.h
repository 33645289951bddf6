// The one walk over blocks that may leave, the coldest first. Who evicts, or copies out ahead, asks
// for the next until there is enough, and says which stayed. Where walks differ is in their Rules.
// (What a plan evicts comes before: lifetimes/carry_out.h.)
//
// Owns: nothing; made for one walk. The order, which keeps its memory from walk to walk, the blocks
// and the uses are the caller's, and so is the engine's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/blocks/age_order.h"
#include "allocator/blocks/uses.h"
#include "firn/thread_safety.h"

namespace firn {

class Candidates {
 public:
  struct Rules {
    AgeOrder::By by = AgeOrder::By::score;
    /// Goes on where the last walk with this order ended, and ranks anew when all were given, for
    /// what stayed may leave when asked again. Otherwise each block is given once.
    bool again = false;
    bool segments = true;           // of small blocks, too
    /// A block in use on a stream that nobody waits for (Streams::set_aside) is passed over until
    /// everything else was tried: a walk that gives each block once does not give it.
    bool aside_last = true;
    const Block* except = nullptr;  // is wanted itself: not given
  };

  /// `live`: every block that moves.
  Candidates(AgeOrder& order, const std::vector<Block*>& live, const Uses& uses,
             const Rules& rules)
      : order_(order), live_(live), uses_(uses), rules_(rules), to_rank_(!rules.again) {}
  /// Null: there is no other, or more stayed than there are blocks. `now`: engine tick.
  Block* next(uint64_t now) FIRN_HELD;
  /// The block that was given could not leave.
  void stays() { ++stayed_; }

 private:
  bool passes_over(const Block& block) FIRN_HELD;

  AgeOrder& order_;
  const std::vector<Block*>& live_;
  const Uses& uses_;
  const Rules rules_;
  bool to_rank_;  // before the next is given
  size_t stayed_ = 0, aside_ = 0;  // times that blocks did; that blocks were passed over for it
  bool met_except_ = false;
};

}  // namespace firn
