#include "backing/store/dir_health.h"

#include <algorithm>

namespace firn {

/// Errors during a pause are of requests that were under way: one outage is one step. A disk that
/// was well for as long as the longest pause begins anew.
bool DirHealth::failed(uint64_t now_ns) {
  if (distrusted_ || now_ns < pause_end_ns_) return false;
  const bool soon = pause_ns_ > 0 && now_ns < pause_end_ns_ + pause_most_ns;
  pause_ns_ = soon ? std::min(2 * pause_ns_, pause_most_ns) : pause_least_ns;
  pause_end_ns_ = now_ns + pause_ns_;
  return true;
}

bool DirHealth::wrong() { return distrust(++wrong_ >= wrong_most); }

bool DirHealth::healed(uint64_t now_ns) {
  healed_ns_.push_back(now_ns);
  if (healed_ns_.size() > healed_most) healed_ns_.pop_front();
  return distrust(healed_ns_.size() == healed_most &&
                  now_ns - healed_ns_.front() <= healed_within_ns);
}

bool DirHealth::distrust(bool due) {
  if (!due || distrusted_) return false;
  distrusted_ = true;
  return true;
}

}  // namespace firn
