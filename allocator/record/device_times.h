// Measures how long the device worked: pairs of timed events around stretches of work on a stream,
// queried once they are over. Never waits for the device.
// Owns: its events, reused, and left to the driver's end. Locks: one of its own; callers need none.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "firn/driver.h"
#include "firn/ranked_mutex.h"

namespace firn::record {

/// Work enqueued between two marks on one stream.
struct Stretch {
  CUevent begin = nullptr, end = nullptr;
};

class DeviceTimes {
 public:
  /// `driver` outlives this.
  DeviceTimes(const Driver& driver, CUcontext context) : driver_(driver), context_(context) {}

  /// Records an event after the work enqueued on the stream. Null: the stream is being captured
  /// into a graph, or the driver refused.
  CUevent mark(CUstream stream);
  /// Takes the stretches' marks; `kernel`'s time is the sum of theirs.
  void measure(uint32_t kernel, std::vector<Stretch> stretches);
  void forget(const std::vector<Stretch>& stretches);

  struct Time {
    uint32_t kernel;
    uint64_t ns;
  };
  /// The times of finished work, each reported once. `all`: also of work enqueued behind unfinished
  /// work on other streams.
  std::vector<Time> collect(bool all = false);

 private:
  struct Pending {
    uint32_t kernel;
    std::vector<Stretch> stretches;
  };
  void recycle(const std::vector<Stretch>& stretches);

  const Driver& driver_;
  const CUcontext context_;
  RankedMutex<Rank::device_times> mutex_;
  std::deque<Pending> pending_;
  std::vector<CUevent> spare_;
};

}  // namespace firn::record
