// How much is written ahead, chosen by rehearsal (lifetimes/rehearse.h): once a period is known and
// was timed, the coming periods are rehearsed with each of a few settings on the machine as it was
// measured, and the one that is clearly the fastest is taken. If the periods that follow take longer
// than rehearsed, or a little longer than with all in memory, more is written ahead for some of
// them, and stays so if that is faster.
//
// Owns: the setting, and the input of a rehearsal until a thread takes it. Lock: the engine's; the
// rehearsal itself (best_of) needs none.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "allocator/lifetimes/rehearse.h"
#include "allocator/policy/learner.h"
#include "allocator/policy/outlook.h"
#include "firn/thread_safety.h"

namespace firn {

/// The input of a rehearsal; its spans are of the vectors, and set when it is made.
struct Stock {
  lifetimes::Rehearsal rehearsal;
  std::vector<lifetimes::Item> items;
  std::vector<lifetimes::Step> steps;
  std::vector<uint64_t> before_ns, in_store;
};

class SpareChoice {
 public:
  /// `most`: the largest part of the memory that is made valid elsewhere ahead, beyond the
  /// shortage; 0: nothing is chosen.
  explicit SpareChoice(double most) : most_(most), fraction_(most) {}

  /// The setting of now.
  double fraction() const FIRN_HELD { return fraction_; }
  /// Looks at what happened since the last call. `plan_short`: a plan is there, and not all fits.
  /// True: stock is to be taken now, for take(); the period takes `period_ns()`.
  bool consider(Learner& learner, bool plan_short, uint64_t now_ns) FIRN_HELD;
  uint64_t period_ns() const FIRN_HELD { return period_ns_; }
  /// The steps and items of the period, with their times. Of `blocks` the caller adds what is in
  /// the store only.
  void take(Outlook& outlook, const History& history, const lifetimes::RehearsalMachine& machine,
            std::vector<uint64_t> in_store) FIRN_HELD;
  /// Whether stock was taken: true asks for a rehearsal, in a thread that nothing waits for.
  void end(Learner& learner, bool taken) FIRN_HELD;

  /// In that thread, under the lock: what is to be rehearsed; none: it was given up.
  std::optional<Stock> due() FIRN_HELD;
  struct Best {
    double spare = 0, ns = 0;  // the setting, and what a period takes; 0: nothing was possible
  };
  /// Without the lock.
  Best best_of(Stock& stock) const FIRN_NOT_HELD;
  /// Under it again.
  void choose(const Best& best) FIRN_HELD;

 private:
  /// A trial of settings that write more ahead than rehearsals see a use for: made if periods take
  /// longer than was rehearsed, or a little longer than with all in memory.
  struct Trial {
    enum class Of : uint8_t { nothing, what_was_chosen, others };
    Of of = Of::nothing;               // the setting that is measured
    double rehearsed_ns = 0;           // a period with the chosen setting
    double chosen = 0, chosen_ns = 0;  // the best setting, and what a period takes with it
    size_t tried = 0;                  // of the others
    uint64_t from = 0;                 // event number from which periods are measured
    uint64_t from_ns = 0;              // and when that was; 0: not yet
  };
  void follow_trial(const History& history, uint64_t now_ns) FIRN_HELD;

  const double most_;
  double fraction_ FIRN_GUARDED;
  bool timing_ FIRN_GUARDED = false;     // the period's device times are being taken
  bool due_ FIRN_GUARDED = false;        // the rehearsal is due or under way
  bool ready_ FIRN_GUARDED = false;      // its input is ready
  uint64_t since_ FIRN_GUARDED = 0;      // event number at which timing began
  uint64_t period_ns_ FIRN_GUARDED = 0;  // as it was timed
  // Of the last choice: events, event number.
  uint64_t period_ FIRN_GUARDED = 0, made_ FIRN_GUARDED = 0;
  Stock stock_ FIRN_GUARDED;
  Trial trial_ FIRN_GUARDED;
};

}  // namespace firn
