// The fraction of time that a channel was busy, over the last one to two periods. The caller holds
// the lock.
#pragma once

#include <algorithm>
#include <cstdint>

namespace firn::lifetimes {

class Load {
 public:
  /// From `now_ns` on the channel is `busy`; until then it was as last reported.
  void tell(uint64_t now_ns, bool busy) {
    if (last_ns_ != 0 && now_ns > last_ns_) {
      total_ns_ += now_ns - last_ns_;
      if (busy_) busy_ns_ += now_ns - last_ns_;
    }
    last_ns_ = std::max(last_ns_, now_ns);
    busy_ = busy;
  }
  /// A period ends: the one before it no longer counts.
  void period_over() {
    before_busy_ns_ = busy_ns_;
    before_total_ns_ = total_ns_;
    busy_ns_ = total_ns_ = 0;
  }
  /// 0 to 1.
  double part() const {
    const uint64_t total = before_total_ns_ + total_ns_;
    return total ? static_cast<double>(before_busy_ns_ + busy_ns_) / static_cast<double>(total) : 0;
  }

 private:
  uint64_t last_ns_ = 0, busy_ns_ = 0, total_ns_ = 0;
  uint64_t before_busy_ns_ = 0, before_total_ns_ = 0;
  bool busy_ = false;
};

}  // namespace firn::lifetimes
