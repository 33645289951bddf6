// Notices for a program that waits most of its time, each said once: that it is a fault storm; that
// memory comes and goes without end, whose, where, and how much of it would be enough.
//
// Owns: the detector of thrash (thrash.h); and, while the waiting operators are asked for, their
// waits, who made which block, and the working set. (The engine writes the lines, tells the
// observer, and walks its blocks for the working set.)
// Lock: the engine's, around every call. It calls nothing above, but for the two figures that
// look() asks for. Costs something only after a wait.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "allocator/blocks/block.h"
#include "allocator/engine/engine.h"
#include "allocator/engine/thrash.h"
#include "firn/thread_safety.h"

namespace firn {

class ThrashNotices {
 public:
  /// Are the waiting operators, and the makers of blocks, asked for?
  bool asking() const FIRN_HELD { return thrash_.asking(); }
  /// A front end reports these while they are asked for; they are ignored at other times.
  void waited(const WaitedBy& who) FIRN_HELD;
  void made_by(const Block& block, std::string_view maker) FIRN_HELD;
  /// The line that allocated it, if asked for in time, else the operator, else null. The string
  /// lives on.
  const char* maker_of(const Block& block) const FIRN_HELD;

  /// Of the engine, at this moment.
  struct Figures {
    Thrash::Totals totals;
    uint64_t tick = 0, budget_bytes = 0;
    bool observed = false;  // a front end reports who waits
    /// Bytes on the device, if all that was used since that tick were there.
    std::function<uint64_t(uint64_t since)> working_bytes;
    /// All that the device has; none: it does not say.
    std::function<std::optional<uint64_t>()> device_bytes;
  };
  struct Notice {
    std::string words;          // empty: there is nothing to say
    std::optional<bool> asked;  // the observer's to know (EngineObserver::storm), if it is set
  };
  /// Looks at a wait that has ended; to be called about in the order of ends.
  Notice look(uint64_t begin_ns, uint64_t end_ns, const Wait& wait, const Figures& figures)
      FIRN_HELD;

 private:
  std::string storm_words(const Figures& figures) const FIRN_HELD;
  std::string thrash_words(const Figures& figures) const FIRN_HELD;
  std::string enough_words(const Figures& figures) const FIRN_HELD;

  Thrash thrash_ FIRN_GUARDED;
  Waiters waiters_ FIRN_GUARDED;
  uint64_t since_ FIRN_GUARDED = 0;          // the tick at which the asking began
  uint64_t working_bytes_ FIRN_GUARDED = 0;  // the most that was used since and was alive at once
  // Never emptied: others point to its words.
  std::set<std::string, std::less<>> makers_ FIRN_GUARDED;
  struct Made {
    uint32_t generation;
    const char* maker;
  };
  std::unordered_map<uint32_t, Made> made_ FIRN_GUARDED;  // by descriptor
};

}  // namespace firn
