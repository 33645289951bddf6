// Chooses the block that leaves next, by age: unused for longest, weighted by size; one whose bytes
// are valid elsewhere goes earlier, since dropping it costs nothing. Lazy: scores are computed for
// all live blocks at once and checked again when one is chosen. The caller holds the engine's lock.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/blocks/block.h"

namespace firn {

class AgeOrder {
 public:
  /// The next block that may be spilled, or null. `live`: every block that moves; `now`: engine
  /// tick; `segments`: those of small blocks, too.
  Block* next(const std::vector<Block*>& live, uint64_t now, bool segments = true);
  /// Forgets scores (a new round of choosing begins).
  void reset() { heap_.clear(); }
  /// May the block, or what is left of it on the device, be spilled as its word stands?
  static bool may_leave(const Block& block, uint64_t w) {
    State state = word::state(w);
    bool there = state == State::resident ||
                 ((state == State::hosted || state == State::spilled) && block.mapped > 0);
    return there && word::holds(w) == 0 && (w & word::proven) &&
           !(w & (word::pinned | word::freed | word::placed));
  }

 private:
  struct Entry {
    double score;
    Block* block;
    uint64_t age;
    bool operator<(const Entry& other) const { return score < other.score; }
  };
  std::vector<Entry> heap_;
};

}  // namespace firn
