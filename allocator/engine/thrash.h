// Detects from the program's waits whether memory comes and goes without end. It distinguishes a
// fault storm (for some time the program has mostly waited for memory, not only for room for new
// blocks: something came back) and thrash (so much has come back meanwhile that it cannot all have
// come for the first time).
//
// Owns: a few counts, and the waiting operators while they are asked for. Locks: the engine's.
// Costs something only after a wait.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace firn {

class Thrash {
 public:
  /// Waits are added up in windows of this length. A storm begins with a window of which the
  /// program waited begin_part, and lasts while it has waited last_part of the whole storm: an
  /// iteration has parts that wait less.
  static constexpr uint64_t window_ns = 500'000'000;
  static constexpr double begin_part = 1. / 2, last_part = 1. / 3;
  /// After a storm of ask_ns it is worth its cost to ask who waits; after waits of say_ns, the
  /// storm is reported.
  static constexpr uint64_t ask_ns = 2 * window_ns, say_ns = 4 * window_ns;
  /// Since then, so many times all that could come back has come back: the same comes again.
  static constexpr uint64_t rounds_least = 2;

  struct Totals {
    uint64_t arrived_bytes = 0, faults = 0;  // ever
    uint64_t movable_bytes = 0;              // allocated now
  };
  enum class Step : uint8_t { none, ask, over, storm, thrash };

  /// A wait has ended; to be called about in the order of ends. Returns what follows from it.
  Step waited(uint64_t begin_ns, uint64_t end_ns, const Totals& totals);
  /// From `ask` on, until it is over or said.
  bool asking() const { return asking_; }

  /// About the storm.
  struct Stretch {
    double seconds = 0, part = 0;  // its length; the part of it waited
    uint64_t arrived_bytes = 0, faults = 0;
    double rounds = 0;             // how often all that could come back did
  };
  Stretch stretch(const Totals& totals) const;

 private:
  Step window_over(uint64_t end_ns, const Totals& totals);

  uint64_t window_begin_ns_ = 0, covered_ns_ = 0, waited_ns_ = 0;
  Totals window_totals_, storm_totals_;
  uint64_t storm_begin_ns_ = 0, storm_waited_ns_ = 0, storm_end_ns_ = 0;
  uint64_t movable_most_ = 0;
  uint64_t asked_arrived_ = 0;
  bool storm_ = false, asked_ = false, asking_ = false, storm_said_ = false, thrash_said_ = false;
};

/// The waits, by operator and line of the program, while that was asked for.
class Waiters {
 public:
  struct Waiter {
    uint64_t times = 0, ns = 0, longest_ns = 0;
    uint64_t bytes = 0;    // of the block that was waited for longest, or of the room
    bool room = false;     // it was for room
    std::string maker;     // of that block: who allocated it; empty: not known
  };
  using Name = std::pair<std::string, std::string>;  // operator, line; either may be empty

  void add(std::string_view name, std::string_view site, uint64_t times, uint64_t ns,
           const Waiter& longest);
  /// The operator and line with the longest wait in all.
  const std::pair<const Name, Waiter>* first() const;
  void clear() { waiters_.clear(); }

 private:
  static constexpr size_t most = 1000;
  std::map<Name, Waiter> waiters_;
};

}  // namespace firn
