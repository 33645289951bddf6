// The engine's only source of time and its only way to wait. One implementation sleeps on the wall
// clock; the other advances the software GPU's virtual clock, so the same engine runs
// deterministically from a seed.
#pragma once

#include <cstdint>

#include "firn/thread_safety.h"

namespace firn {

class Clock {
 public:
  virtual ~Clock() = default;
  /// Nanoseconds since an arbitrary origin; never goes back.
  virtual uint64_t now_ns() = 0;
  /// Returns when something may have completed (a copy, an I/O request, a notify), or after
  /// `ns_max`. May return early. Called with no engine lock held. A virtual clock advances to its
  /// next event; it aborts the run if there is none (a deadlock, found at once).
  virtual void wait(uint64_t ns_max) FIRN_NOT_HELD = 0;
  /// Wakes every waiter. Callable from any thread, also from the store's I/O thread.
  virtual void notify() = 0;
};

/// The wall clock (CLOCK_MONOTONIC, condition variable). Process-wide, never destroyed.
Clock& wall_clock();

}  // namespace firn
