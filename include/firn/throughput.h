// How fast a channel is: bytes that completed, over the time in which there was something to
// complete. Older transfers fade with the channel's busy time, so that an idle one keeps its
// figure.
//
// Needs nothing: no clock, no thread. The caller holds one lock around every call.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace firn {

class Throughput {
 public:
  /// `memory_ns`: busy time after which a transfer counts for 1/e.
  explicit Throughput(uint64_t memory_ns = 2'000'000'000) : memory_ns_(memory_ns) {}

  /// A transfer was given to the channel; times in ns, not descending.
  void begin(uint64_t now_ns) {
    if (in_flight_++ == 0) since_ns_ = now_ns;
  }
  /// A transfer is over. `bytes` 0: it failed or was withdrawn, and neither it nor the time since
  /// the last completion counts. Also for one that waited for more than the channel.
  void end(uint64_t bytes, uint64_t now_ns) {
    if (in_flight_ > 0) --in_flight_;
    const auto busy_ns = static_cast<double>(now_ns - std::min(now_ns, since_ns_));
    since_ns_ = now_ns;
    if (bytes == 0) return;
    const double kept = std::exp(-busy_ns / static_cast<double>(memory_ns_));
    bytes_ = bytes_ * kept + static_cast<double>(bytes);
    busy_ns_ = busy_ns_ * kept + busy_ns;
    all_bytes_ += static_cast<double>(bytes);
  }
  bool busy() const { return in_flight_ > 0; }
  /// 0: not known yet, less than `bytes_least` went through.
  double bytes_s() const {
    return all_bytes_ < bytes_least || busy_ns_ <= 0 ? 0 : bytes_ / busy_ns_ * 1e9;
  }
  static constexpr double bytes_least = 32 << 20;

 private:
  uint64_t memory_ns_;
  uint64_t in_flight_ = 0;
  uint64_t since_ns_ = 0;             // busy since, or since the last completion
  double bytes_ = 0, busy_ns_ = 0;    // both fading
  double all_bytes_ = 0;
};

}  // namespace firn
