// Ranks blocks by age: unused for longest, weighted by size; one whose bytes are valid elsewhere
// goes earlier, since dropping it costs nothing. Lazy: scores are computed for all live blocks at
// once and checked again when one is chosen. The caller holds the engine's lock.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/blocks/block.h"
#include "firn/thread_safety.h"

namespace firn {

class AgeOrder {
 public:
  /// The coldest has the highest score (base/age_score.h), or is the oldest.
  enum class By : uint8_t { score, age };

  /// Ranks all that may be spilled, in place of what was ranked before. `live`: every block that
  /// moves; `now`: engine tick; `segments`: those of small blocks, too.
  void rank(const std::vector<Block*>& live, uint64_t now, By by, bool segments) FIRN_HELD;
  /// The coldest of those ranked and not given yet that may still be spilled, and was not touched
  /// since; null: there is none.
  Block* next() FIRN_HELD;
  /// May the block, or what is left of it on the device, be spilled as its word stands?
  static bool may_leave(const Block& block, uint64_t w) FIRN_HELD {
    State state = word::state(w);
    bool there = state == State::resident ||
                 ((state == State::hosted || state == State::spilled) && block.mapped > 0);
    return there && word::holds(w) == 0 && (w & word::proven) &&
           !(w & (word::pinned | word::placed)) && (!(w & word::freed) || block.kept);
  }

 private:
  struct Candidate {
    double score;
    Block* block;
    uint64_t age;
    bool operator<(const Candidate& other) const { return score < other.score; }
  };
  std::vector<Candidate> heap_ FIRN_GUARDED;
};

}  // namespace firn
