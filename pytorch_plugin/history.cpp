#include "pytorch_plugin/history.h"

#include <c10/util/ApproximateClock.h>

#include <algorithm>

namespace firn::pytorch {

void History::set(bool enabled, Recorder recorder, size_t entries_most, When when, bool clear,
                  const std::vector<std::string>& skip) {
  std::vector<Entry::Action> skipped;
  for (const std::string& word : skip)
    skipped.push_back(c10::CachingDeviceAllocator::parseTraceEntryAction(word));
  std::lock_guard lock(mutex_);
  recorder_ = enabled ? recorder : nullptr;
  when_ = enabled ? when : When::NEVER;
  entries_most_ = std::max<size_t>(1, entries_most);
  skipped_ = std::move(skipped);
  if (!enabled || clear) {
    entries_.clear();
    live_.clear();
  }
  enabled_.store(enabled, std::memory_order_release);
}

void History::note(Entry::Action action, int device, const void* address, size_t bytes,
                   void* stream, c10::MempoolId_t pool) {
  Recorder recorder = nullptr;
  When when;
  {
    std::lock_guard lock(mutex_);
    if (!enabled()) return;
    recorder = recorder_;
    when = when_;
  }
  const bool allocation = action == Entry::ALLOC;
  Context context;
  if (recorder && (allocation ? when >= When::STATE : when >= When::ALL)) context = recorder();
  std::lock_guard lock(mutex_);
  if (allocation && context)
    live_[address] = context;
  else if (action == Entry::FREE_COMPLETED)
    live_.erase(address);
  if (std::find(skipped_.begin(), skipped_.end(), action) != skipped_.end()) return;
  std::deque<Entry>& ring = entries_[device];
  if (allocation && when < When::ALLOC) context = nullptr;
  ring.emplace_back(action, static_cast<c10::DeviceIndex>(device),
                    reinterpret_cast<size_t>(address), bytes, stream, pool,
                    c10::getApproximateTime(), std::move(context));
  while (ring.size() > entries_most_) ring.pop_front();
}

History::Context History::context_of(const void* address) {
  if (!enabled()) return nullptr;
  std::lock_guard lock(mutex_);
  auto found = live_.find(address);
  return found == live_.end() ? nullptr : found->second;
}

std::vector<std::vector<History::Entry>> History::traces(int device_count) {
  static c10::ApproximateClockToUnixTimeConverter converter;
  const auto to_unix_ns = converter.makeConverter();
  std::lock_guard lock(mutex_);
  std::vector<std::vector<Entry>> out(device_count);
  for (int device = 0; device < device_count; ++device) {
    auto found = entries_.find(device);
    if (found == entries_.end()) continue;
    out[device].assign(found->second.begin(), found->second.end());
    for (Entry& entry : out[device])
      entry.time_.t_ = to_unix_ns(entry.time_.approx_t_) / 1000;  // microseconds, as torch's
  }
  return out;
}

}  // namespace firn::pytorch
