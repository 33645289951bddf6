// The position of the history that corresponds to now: the events that followed it are the events
// that follow now. It advances while events agree, slides over a few that are missing or new, and
// otherwise moves to where the longest known context was last seen. Owns only that position and the
// evidence for it. The caller holds the lock.
//
// The evidence for a match: a block that was alive at the twin's time must be in the very same
// role. That, and memory in use, distinguish an iteration from a layer that looks like the one
// before.
#pragma once

#include <cstdint>

#include "allocator/lifetimes/contexts.h"
#include "allocator/lifetimes/events.h"
#include "allocator/lifetimes/identities.h"

namespace firn::lifetimes {

class Twin {
 public:
  /// The newest event came; it belongs to the life `of`.
  void advance(const Events& events, const Contexts& contexts, const Identities& identities,
               Life of);
  /// The events after `position` are what will come.
  void move_to(uint64_t position);

  bool matched() const { return matched_; }
  bool known() const { return known_; }
  /// The last event's twin; valid when matched().
  uint64_t position() const { return position_; }
  /// The last event and its twin are the same event of two iterations.
  bool paired() const { return paired_; }
  /// No recent surprise.
  bool steady() const { return slipping_ == 0; }

 private:
  enum class Grade { none, contradiction, weak, same };
  static Grade grade(const Event& event, const Event& twin, bool old);
  void judge(Grade grade, bool agrees);
  void realign(const Events& events);
  void look_up(const Events& events, const Contexts& contexts);
  /// When lost: looks for earlier events of an old block in the same surroundings.
  void look_back(const Events& events, const Identities& identities,
                 const Identities::LifeRecord& life);
  /// Moves to the candidate unless recent evidence contradicts it, or is less than `enough` while
  /// memory in use differs.
  bool accept(const Events& events, uint64_t candidate, const Contexts::Kind& kind, double enough);
  bool live_agrees(const Events& events, uint64_t candidate, bool coarse) const;

  uint64_t position_ = 0;
  bool matched_ = false, known_ = false, paired_ = false;
  bool coarse_ = false;   // sizes differ from the twin's
  uint64_t run_ = 0;      // events in a row that agree exactly; a surprise that was slid over
                          // does not end it
  uint64_t unknown_ = 0;  // events since the match was last known
  int credit_ = 0;        // spent by surprises, earned by agreement
  int slipping_ = 0;      // events to agree until a surprise is over
  double agree_ = 0, contradict_ = 0;  // evidence of blocks older than the twin, fading
};

}  // namespace firn::lifetimes
