// When places are planned (lifetimes/places.h), for what, and when they are given up: once a period
// was the same for a few rounds in which frames were mapped anew, the next one is planned for. If
// the program then does something else, or the places save nothing, they are given up, and the wait
// until the next plan doubles.
//
// Owns: the rounds and what was counted in them, when each identity last left the device, and the
// input of a plan until a thread takes it. (The engine has the places themselves.) Lock: the
// engine's; the planning itself (lifetimes::plan_places) needs none.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "allocator/blocks/block.h"
#include "allocator/lifetimes/places.h"
#include "allocator/policy/learner.h"
#include "firn/thread_safety.h"

namespace firn {

class PlacePlanner {
 public:
  /// `on`: places are planned at all. `no_wall_clock`: a plan takes so many steps, however long.
  PlacePlanner(bool on, bool no_wall_clock) : on_(on), no_wall_clock_(no_wall_clock) {}

  /// The block leaves the device: its identity gets no place in the periods to come.
  void note_leaving(const Learner& learner, const Block& block) FIRN_HELD;
  /// An allocation with a planned place got a block of its own instead.
  void note_missed() FIRN_HELD { ++missed_; }

  /// Of the engine, at this moment.
  struct Figures {
    bool active = false;     // places of a plan are handed out
    uint64_t places = 0;     // of the plan
    uint64_t placed = 0;     // allocations that got their places, ever
    uint64_t maps = 0;       // frames mapped, ever
  };
  enum class Then : uint8_t {
    nothing,
    plan,     // take() is to be called now, and asks for a plan
    give_up,  // the places are to be handed out no more
  };
  /// Looks at what happened since the last call.
  Then consider(const Learner& learner, const Figures& figures) FIRN_HELD;
  /// Collects what may have places, and how much memory everything takes, in the period to come.
  /// `capacity`: pages for large blocks; `pages`: those that they take now. A plan is due then, in
  /// a thread that nothing waits for.
  void take(const Learner& learner, uint64_t capacity, uint64_t pages) FIRN_HELD;

  /// In that thread, under the lock: what is to be planned; none: nothing is.
  std::optional<lifetimes::PlacesInput> due() FIRN_HELD;
  /// Under it again, with a plan for a period of so many events. False: the period is another by
  /// now, and the plan is dropped. Else give_up() or adopted() follows.
  bool end(const Learner& learner, uint64_t period) FIRN_HELD;
  /// The plan failed: the wait until the next one doubles each time.
  void give_up(const Learner& learner) FIRN_HELD;
  /// Its places are handed out from now on.
  void adopted(const Learner& learner, const lifetimes::Places& planned, uint64_t period,
               const Figures& figures) FIRN_HELD;

  // Figures.
  uint64_t missed() const FIRN_HELD { return missed_; }
  /// Frames mapped in the round before planning, and in the last one with places.
  uint64_t maps_without_places() const FIRN_HELD { return maps_without_; }
  uint64_t maps_with_places() const FIRN_HELD { return maps_with_; }
  /// Bytes of the placed blocks beyond what was asked for, at their most, by the last plan.
  uint64_t waste_without_places() const FIRN_HELD { return waste_without_; }
  uint64_t waste_with_places() const FIRN_HELD { return waste_with_; }

 private:
  Then follow(const Learner& learner, const Figures& figures) FIRN_HELD;
  void begin_round(const Learner& learner, const Figures& figures) FIRN_HELD;
  void find_stays(const Learner& learner, std::vector<lifetimes::Stay>& stays) const FIRN_HELD;

  const bool on_, no_wall_clock_;
  std::vector<uint64_t> left_at_;      // by identity: the event at which it last left the device
  bool due_ = false, ready_ = false;   // a plan is being made; its input waits for it
  lifetimes::PlacesInput stock_;
  uint64_t seen_ = 0, since_ = 0;      // a period, and the event since which it was that
  uint64_t next_ = 0;                  // event number before which nothing is planned
  uint64_t rounds_waited_ = 1;
  uint64_t rounds_watched_ = 0, maps_watched_ = 0;  // rounds since the last verdict; maps in them
  uint64_t round_ = 0;                 // event number at which the round of the period began
  uint64_t maps_before_ = 0, placed_before_ = 0, missed_before_ = 0;  // counts at that time
  uint64_t period_ = 0, adopted_ = 0;  // of the plan: events, event number
  uint64_t missed_ = 0, maps_without_ = 0, maps_with_ = 0;
  uint64_t waste_without_ = 0, waste_with_ = 0;
};

}  // namespace firn
