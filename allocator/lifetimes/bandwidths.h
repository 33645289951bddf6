// How fast the ways in and out are, from what went through them: bytes that completed over the time
// in which there was something to complete. Older transfers are forgotten slowly, with the time a
// channel was busy, so that an idle channel keeps what is known of it.
//
// Needs nothing: no clock, no thread. The caller holds one lock around every call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "allocator/lifetimes/channel.h"

namespace firn::lifetimes {

class Bandwidths {
 public:
  /// `memory_ns`: busy time after which a transfer counts for 1/e.
  explicit Bandwidths(uint64_t memory_ns = 2'000'000'000) : memory_ns_(memory_ns) {}

  /// A transfer was given to the channel; times in ns, not descending within a channel.
  void begin(Channel channel, uint64_t now_ns);
  /// One that was begun is over. `bytes` 0: it failed or was withdrawn, and neither it nor the time
  /// since the last completion counts. So too for one that did not wait for the channel alone.
  void end(Channel channel, uint64_t bytes, uint64_t now_ns);

  bool busy(Channel channel) const { return of_[static_cast<size_t>(channel)].in_flight > 0; }
  /// 0: not known yet, less than `bytes_least` went through.
  double bytes_s(Channel channel) const;
  static constexpr double bytes_least = 32 << 20;

 private:
  struct Measure {
    uint64_t in_flight = 0;
    uint64_t since_ns = 0;           // busy since, or since the last completion
    double bytes = 0, busy_ns = 0;   // both fading
    double all_bytes = 0;
  };
  const uint64_t memory_ns_;
  std::array<Measure, channel_count> of_{};
};

}  // namespace firn::lifetimes
