// Predicts what a program will do with its memory from what it did before. Fed with its stream of
// events (allocate, touch, free), it detects that the present repeats the past, and so knows every
// live block's next use: the future is what followed the last time.
//
// It keeps a position of the past as now's twin (twin.h): events that agree advance it, others make
// it slide or search elsewhere, by contexts of up to 8192 events (contexts.h). It predicts only
// while known(), that is, while the match deserves trust.
//
// Cost, by bench/lifetimes/history_bench on one core of a cloud machine: 140 ns per event while the
// period is known, 460 ns while nothing repeats, 12 ns per question; 72 bytes per event kept.
//
// Needs nothing: no clock, no driver, no thread. The caller holds one lock around every call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "allocator/lifetimes/contexts.h"
#include "allocator/lifetimes/events.h"
#include "allocator/lifetimes/identities.h"
#include "allocator/lifetimes/stamps.h"
#include "allocator/lifetimes/twin.h"

namespace firn::lifetimes {

class History {
 public:
  /// Keeps the last `events_most` events (rounded up to a power of two); an iteration must be
  /// shorter. Keeps fewer while a short iteration is known.
  explicit History(size_t events_most = 1 << 20);

  // The program's events, in its order.
  Life allocate(uint64_t bytes);
  void touch(Life life, bool write);
  void free(Life life);

  /// A match that deserves trust.
  bool known() const { return twin_.known(); }
  /// Events so far; the position of the newest.
  uint64_t now() const { return events_.now(); }
  /// Events since now's twin; 0: none.
  uint64_t period() const { return twin_.matched() ? now() - twin_.position() : 0; }

  /// The life's role in every iteration. May change while it lives: an older holder steps aside, or
  /// the match improves.
  Identity identity(Life life) const { return identities_[life].identity; }
  /// The life that holds the identity now; 0: none.
  Life holder(Identity identity) const { return identities_.holder(identity); }
  /// The identity that a holder takes on when the next holder is allocated; 0: that never happened.
  Identity marker(Identity identity) const { return identities_.marker(identity); }

  struct Upcoming {
    EventKind kind = EventKind::allocate;
    Identity identity = 0;
    uint64_t bytes = 0;
    Life life = 0;  // the identity's holder now; 0: none
  };
  /// The event `ahead` from now: 1 is the next. Beyond the period it starts over. Only when
  /// known().
  Upcoming upcoming(uint64_t ahead) const;

  static constexpr uint64_t never = UINT64_MAX;
  /// Is anything known of the life's role from before now's twin? If not, `never` only means
  /// unknown: the life began while there was no match, or is new to the program.
  bool foreseen(Life life) const;
  /// Events from now until the life is touched next; never: not in the coming period, or unknown.
  uint64_t next_use(Life life) const;
  /// The same, its free included. `kind`, when not null: what it is.
  uint64_t next_event(Life life, EventKind* kind = nullptr) const;

  /// The device had finished all up to `position` at `device_ns`. Ascending, at any interval.
  void stamp(uint64_t position, uint64_t device_ns) { stamps_.add(position, device_ns); }
  /// Device time from now to the event `ahead`, as it took the last time; never: unknown.
  uint64_t ns_until(uint64_t ahead) const;
  /// Device time of the last period; never: unknown.
  uint64_t period_ns() const;

  /// An event given in advance. `block`: a Life that is live now, or `plan_block` and above for one
  /// that the plan allocates, any number, to be used again after its free.
  static constexpr uint32_t plan_block = 1u << 31;
  struct Planned {
    EventKind kind;
    uint32_t block;
    uint64_t bytes;  // of an allocation
  };
  /// These events come next; fewer than the history keeps.
  void preload(std::span<const Planned> plan);

  /// Memory held, for the bound.
  size_t bytes() const { return events_.bytes() + contexts_.bytes() + identities_.bytes(); }

 private:
  void feed(EventKind kind, Life life);
  void append(EventKind kind, Identity identity, bool persistent, uint64_t bytes, uint64_t born,
              uint64_t live_bytes, uint32_t live_count);
  uint64_t next(Life life, bool touches_only, EventKind* kind) const;

  Events events_;
  Contexts contexts_;
  Identities identities_;
  Twin twin_;
  Stamps stamps_;
};

}  // namespace firn::lifetimes

namespace firn {
using lifetimes::EventKind;
using lifetimes::History;
using lifetimes::Identity;
using lifetimes::Life;
}  // namespace firn
