#include "allocator/blocks/device_clock.h"

#include <algorithm>
#include <new>

namespace firn {

void DeviceClock::mark(unsigned stream, uint64_t position) {
  if (marks_.size() >= marks_most) return;  // the next mark covers this one's work too
  const Use use = streams_.now(stream);
  if (!streams_.close(use)) return;  // refused, or captured into a graph
  marks_.push_back({use, position, ready_ns_, std::move(waits_)});
  waits_.clear();
  last_position_ = position;
}

void DeviceClock::waits_for(Use use) {
  if (streams_.over(use)) return;
  try {
    waits_.push_back(use);
  } catch (const std::bad_alloc&) {  // the wait counts as work
  }
}

bool DeviceClock::advance(uint64_t now_ns) {
  // Checked now, for every mark: the end of a wait must not be taken for later than it was.
  const auto see = [&](std::vector<Use>& waits, uint64_t& ready_ns) {
    if (std::erase_if(waits, [&](Use use) { return streams_.over(use); }))
      ready_ns = std::max(ready_ns, now_ns);
  };
  for (Mark& mark : marks_) see(mark.waits, mark.ready_ns);
  see(waits_, ready_ns_);
  if (marks_.empty() || !streams_.over(marks_.front().use)) return false;
  const Mark& mark = marks_.front();
  const uint64_t begin_ns = std::max(last_over_ns_, mark.ready_ns);
  if (last_over_ns_ != 0) device_ns_ += now_ns - std::min(now_ns, begin_ns);
  last_over_ns_ = now_ns;
  return true;
}

}  // namespace firn
