#include "allocator/lifetimes/bandwidths.h"

#include <algorithm>
#include <cmath>

namespace firn::lifetimes {

void Bandwidths::begin(Channel channel, uint64_t now_ns) {
  Measure& m = of_[static_cast<size_t>(channel)];
  if (m.in_flight++ == 0) m.since_ns = now_ns;
}

void Bandwidths::end(Channel channel, uint64_t bytes, uint64_t now_ns) {
  Measure& m = of_[static_cast<size_t>(channel)];
  if (m.in_flight > 0) --m.in_flight;
  const auto busy_ns = static_cast<double>(now_ns - std::min(now_ns, m.since_ns));
  m.since_ns = now_ns;
  if (bytes == 0) return;
  const double kept = std::exp(-busy_ns / static_cast<double>(memory_ns_));
  m.bytes = m.bytes * kept + static_cast<double>(bytes);
  m.busy_ns = m.busy_ns * kept + busy_ns;
  m.all_bytes += static_cast<double>(bytes);
}

double Bandwidths::bytes_s(Channel channel) const {
  const Measure& m = of_[static_cast<size_t>(channel)];
  if (m.all_bytes < bytes_least || m.busy_ns <= 0) return 0;
  return m.bytes / m.busy_ns * 1e9;
}

}  // namespace firn::lifetimes
