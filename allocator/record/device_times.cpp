#include "allocator/record/device_times.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace firn::record {

CUevent DeviceTimes::mark(CUstream stream) {
  Driver::ContextGuard context(driver_, context_);
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver_.stream_is_capturing(stream, &capture) != CUDA_SUCCESS ||
      capture != CU_STREAM_CAPTURE_STATUS_NONE)
    return nullptr;
  CUevent event = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      event = spare_.back();
      spare_.pop_back();
    }
  }
  if (!event && driver_.event_create(&event, CU_EVENT_DEFAULT) != CUDA_SUCCESS) return nullptr;
  if (driver_.event_record(event, stream) == CUDA_SUCCESS) return event;
  std::lock_guard lock(mutex_);
  spare_.push_back(event);
  return nullptr;
}

void DeviceTimes::measure(uint32_t kernel, std::vector<Stretch> stretches) {
  if (stretches.empty()) return;
  std::lock_guard lock(mutex_);
  pending_.push_back({kernel, std::move(stretches)});
}

void DeviceTimes::forget(const std::vector<Stretch>& stretches) {
  std::lock_guard lock(mutex_);
  recycle(stretches);
}

/// CUDA allows recording an event again while its last record is pending.
void DeviceTimes::recycle(const std::vector<Stretch>& stretches) {
  for (const Stretch& stretch : stretches)
    for (CUevent event : {stretch.begin, stretch.end})
      if (event) spare_.push_back(event);
}

std::vector<DeviceTimes::Time> DeviceTimes::collect(bool all) {
  std::vector<Time> times;
  Driver::ContextGuard context(driver_, context_);
  std::lock_guard lock(mutex_);
  std::deque<Pending> waiting;
  while (!pending_.empty()) {
    Pending& front = pending_.front();
    if (driver_.event_query(front.stretches.back().end) != CUDA_SUCCESS) {
      if (!all) break;
      waiting.push_back(std::move(front));
      pending_.pop_front();
      continue;
    }
    double ms = 0;
    bool timed = true;
    for (const Stretch& stretch : front.stretches) {
      float part = 0;
      timed &= driver_.event_elapsed_time(&part, stretch.begin, stretch.end) == CUDA_SUCCESS;
      ms += std::max(part, 0.0f);
    }
    if (timed) times.push_back({front.kernel, static_cast<uint64_t>(std::llround(ms * 1e6))});
    recycle(front.stretches);
    pending_.pop_front();
  }
  if (all) pending_ = std::move(waiting);
  return times;
}

}  // namespace firn::record
