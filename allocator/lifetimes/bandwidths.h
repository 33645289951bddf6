// The measured speed of each channel (firn/throughput.h). Needs no clock and no thread. The caller
// holds one lock around every call.
#pragma once

#include <array>

#include "allocator/lifetimes/channel.h"
#include "firn/throughput.h"

namespace firn::lifetimes {

class Bandwidths {
 public:
  void begin(Channel channel, uint64_t now_ns) { of(channel).begin(now_ns); }
  void end(Channel channel, uint64_t bytes, uint64_t now_ns) { of(channel).end(bytes, now_ns); }
  bool busy(Channel channel) const { return of(channel).busy(); }
  double bytes_s(Channel channel) const { return of(channel).bytes_s(); }

 private:
  Throughput& of(Channel channel) { return of_[static_cast<size_t>(channel)]; }
  const Throughput& of(Channel channel) const { return of_[static_cast<size_t>(channel)]; }
  std::array<Throughput, channel_count> of_;
};

}  // namespace firn::lifetimes
