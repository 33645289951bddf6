// Another way to decide what moves than Firn's own, to compare with: `firn simulate` has two
// (simulate/greedy.h, simulate/oracle.h). No engine that serves a program has one.
//
// Lock: every function is called with the engine's. What it decides is carried out by the means
// that the engine has anyway (tiers.h): a bad decision costs time, never a byte.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "allocator/blocks/piece_ref.h"
#include "firn/thread_safety.h"

namespace firn {

class EngineTiers;

class Baseline {
 public:
  virtual ~Baseline() = default;

  enum class Then : uint8_t {
    as_usual,      // the engine learns, plans and decides by itself
    decide_anew,   // the same, at once: what is known has changed
    decided,       // the engine plans nothing
  };
  /// A round of learning: the history knows what happened since the last one, if anything did.
  virtual Then learn(EngineTiers& tiers, bool happened) FIRN_HELD = 0;
  /// Does it have a plan? Then carry_out() stands for the engine's own.
  virtual bool has_plan() const FIRN_HELD { return false; }
  /// One round of doing what was decided. True when something was begun.
  virtual bool carry_out(EngineTiers&) FIRN_HELD { return false; }

  /// A piece has come to host memory. True: next_write() names it, or give_up_writes().
  virtual bool came_out(const PieceRef&) FIRN_HELD { return false; }
  virtual std::optional<PieceRef> next_write() FIRN_HELD { return std::nullopt; }
  virtual std::vector<PieceRef> give_up_writes() FIRN_HELD { return {}; }
  /// Does the block's copy in host memory go once the store has it?
  virtual bool leaves_host(const Block&) const FIRN_HELD { return false; }
  /// Bytes of host memory from which on copies are written to the store.
  virtual uint64_t writes_from(const EngineTiers& tiers) const FIRN_HELD;
};

}  // namespace firn
