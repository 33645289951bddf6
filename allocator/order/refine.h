// Looks for an order of at most a given peak. It cuts at the worst operator: the minimum cut says
// which operators have to run before it and which after, for the fewest bytes to be alive when it
// runs. The operators before it and after it are then pieces of their own; the worst piece is next.
//
// A piece whose worst operator is at its least, and above the wanted peak, refutes the cuts that
// made the piece. If one cut alone is to blame, because having that operator before (or after) the
// one that was cut keeps too much alive whatever else is done, then the opposite holds in every
// order of that peak: it is learnt, and the search starts over with it. If none is, the opposite of
// one of them is supposed.
// Owns: its arrays. Locks: none (one per thread).
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "allocator/order/cut.h"
#include "allocator/order/sequence.h"
#include "allocator/order/stop.h"

namespace firn::order {

class Refiner {
 public:
  /// Keeps references.
  Refiner(const Graph& graph, Turn& turn, uint64_t seed);

  enum class Outcome : uint8_t {
    found,    // best() has at most the peak that was wanted
    none,     // no order has
    gave_up,  // too many conflicts, or the turn is over
  };
  /// From `start` on.
  Outcome search(const Sequence& start, uint64_t peak, unsigned conflicts_max);
  /// The best order on the way of the last search.
  const Sequence& best() const { return *best_; }

 private:
  struct Split {
    uint32_t parent;  // of splits_; nothing: the whole
    uint32_t op;
    bool before;      // the piece is what runs before op
  };
  struct Piece {
    uint64_t peak;
    uint32_t begin, end, split;
    bool operator<(const Piece& other) const { return peak < other.peak; }
  };
  struct Conflict {
    uint32_t op, split;
  };

  /// Nothing: the sequence has at most the peak, or the turn is over.
  std::optional<Conflict> refine(Sequence& sequence, uint64_t peak);
  /// Puts an edge in, and base into an order that keeps it. False: there is none to put in.
  bool learn(Sequence& base, const Conflict& conflict, uint64_t peak);
  /// Is more than the peak alive in every order in which first is before second?
  bool impossible(const Sequence& sequence, uint32_t first, uint32_t second, uint64_t peak);
  uint64_t cut(const Sequence& sequence, uint32_t begin, uint32_t end, uint32_t position,
               Cutter::Side side);
  /// False: second is before first already.
  bool put_in(Sequence& base, uint32_t first, uint32_t second);

  const Graph& graph_;
  Turn& turn_;
  Precedence precedence_;
  Cutter cutter_;
  std::mt19937_64 random_;
  std::vector<Split> splits_;
  bool supposed_ = false;  // what is known rests on a supposition
  std::optional<Sequence> best_;
};

}  // namespace firn::order
