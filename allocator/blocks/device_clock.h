// The program's own time on the device: a clock that runs while the program's work runs, or could,
// and stands still while that work waits for blocks to come back or for room. Marks are events
// recorded behind the work enqueued so far; two of them enclose the work enqueued between. Its
// waits are known: for how long the program's thread was held up (stalled()), and for which copies
// the stream was made to wait (waits_for()). The rest is the work's time.
//
// A mark is found complete by polling; its time is late by as much, which cancels out over several
// marks. Times that overlap on several streams are counted once. No call waits.
//
// Owns its events through Streams. Needs the engine's lock, and its context current for mark().
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "allocator/blocks/streams.h"
#include "firn/thread_safety.h"

namespace firn {

class DeviceClock {
 public:
  explicit DeviceClock(Streams& streams) : streams_(streams) {}

  /// Records an event behind all work enqueued on the stream; `position` is the caller's.
  void mark(unsigned stream, uint64_t position) FIRN_HELD;
  /// Work enqueued from here on could not be enqueued before `now_ns`.
  void stalled(uint64_t now_ns) FIRN_HELD { ready_ns_ = now_ns; }
  /// Work enqueued from here on waits for `use`.
  void waits_for(Use use) FIRN_HELD;
  /// Calls over(position, device_ns) for every mark that is over, in order.
  template <class Over>
  void poll(uint64_t now_ns, Over&& over) FIRN_HELD {
    while (advance(now_ns)) {
      over(marks_.front().position, device_ns_);
      marks_.pop_front();
    }
  }
  /// Is there anything to poll for?
  bool pending() const FIRN_HELD { return !marks_.empty() || !waits_.empty(); }
  uint64_t last_position() const FIRN_HELD { return last_position_; }

 private:
  struct Mark {
    Use use;
    uint64_t position;
    uint64_t ready_ns;        // the work before it could not begin earlier than this
    std::vector<Use> waits;   // nor before these were over
  };
  static constexpr size_t marks_most = 256;
  bool advance(uint64_t now_ns) FIRN_HELD;

  Streams& streams_;
  std::deque<Mark> marks_ FIRN_GUARDED;
  uint64_t ready_ns_ FIRN_GUARDED = 0;  // of work without a mark behind it yet
  std::vector<Use> waits_ FIRN_GUARDED;
  uint64_t last_position_ FIRN_GUARDED = 0, last_over_ns_ FIRN_GUARDED = 0;
  uint64_t device_ns_ FIRN_GUARDED = 0;
};

}  // namespace firn
