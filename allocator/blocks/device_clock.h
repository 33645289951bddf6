// The program's own time on the device: a clock that runs while the program's work runs, or could
// have, and stands still while that work waits for blocks to come back or for room. Marks are
// events behind the work enqueued so far; between two of them lies the work enqueued between. What
// of it had to wait is known: for how long the program's thread was held up (stalled()), and for
// which copies the stream was made to wait (waits_for()). The work's time is what is left.
//
// A mark is seen over when somebody polls; its time is late by as much, which cancels out over
// several marks. On several streams times that overlap are counted once. No call waits.
//
// Owns its events through Streams. Needs the engine's lock, and its context current for mark().
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "allocator/blocks/streams.h"

namespace firn {

class DeviceClock {
 public:
  explicit DeviceClock(Streams& streams) : streams_(streams) {}

  /// An event behind all that was enqueued on the stream before; `position` is the caller's.
  void mark(unsigned stream, uint64_t position);
  /// What is enqueued from here on could not be before `now_ns`.
  void stalled(uint64_t now_ns) { ready_ns_ = now_ns; }
  /// What is enqueued from here on waits for it.
  void waits_for(Use use) {
    if (!streams_.over(use)) waits_.push_back(use);
  }
  /// Calls over(position, device_ns) for every mark that is over, in order.
  template <class Over>
  void poll(uint64_t now_ns, Over&& over) {
    while (advance(now_ns)) {
      over(marks_.front().position, device_ns_);
      marks_.pop_front();
    }
  }
  /// Is there anything to poll for?
  bool pending() const { return !marks_.empty() || !waits_.empty(); }
  uint64_t last_position() const { return last_position_; }

 private:
  struct Mark {
    Use use;
    uint64_t position;
    uint64_t ready_ns;        // the work before it could not begin earlier
    std::vector<Use> waits;   // nor before these were over
  };
  static constexpr size_t marks_most = 256;
  bool advance(uint64_t now_ns);

  Streams& streams_;
  std::deque<Mark> marks_;
  uint64_t ready_ns_ = 0;     // of work that no mark is behind yet
  std::vector<Use> waits_;
  uint64_t last_position_ = 0, last_over_ns_ = 0, device_ns_ = 0;
};

}  // namespace firn
