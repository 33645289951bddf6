#include "pytorch_plugin/allocation_log.h"

#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <utility>

#include "pytorch_plugin/python_state.h"

namespace firn::pytorch {

namespace {

thread_local std::vector<std::string> compile_contexts;
thread_local std::string user_metadata_of_thread;

/// Approximate times to microseconds since 1970, as torch's snapshots have them.
template <class Entries>
void convert_times(Entries& entries) {
  static c10::ApproximateClockToUnixTimeConverter converter;
  const auto to_unix_ns = converter.makeConverter();
  for (auto& entry : entries) entry.time_.t_ = to_unix_ns(entry.time_.approx_t_) / 1000;
}

}  // namespace

void AllocationLog::set(bool enabled, Recorder recorder, size_t entries_most, When when, bool clear,
                  const std::vector<std::string>& skip) {
  std::vector<TraceEntry::Action> skipped;
  for (const std::string& word : skip)
    skipped.push_back(c10::CachingDeviceAllocator::parseTraceEntryAction(word));
  settle();
  std::lock_guard lock(mutex_);
  recorder_ = enabled ? recorder : nullptr;
  when_ = enabled ? when : When::NEVER;
  entries_most_ = std::max<size_t>(1, entries_most);
  skipped_ = std::move(skipped);
  if (!enabled || clear) {
    entries_.clear();
    annotations_.clear();
    live_.clear();
    segments_.clear();
  }
  enabled_.store(enabled, std::memory_order_release);
  noting_.store(enabled || !trackers_.empty(), std::memory_order_release);
}

void AllocationLog::add_tracker(Tracker tracker) {
  std::lock_guard lock(mutex_);
  trackers_.push_back(std::move(tracker));
  noting_.store(true, std::memory_order_release);
}

/// The caller's stack, if that much is recorded. Without a lock: the recorder takes the GIL.
AllocationLog::Context AllocationLog::gather(When least) {
  Recorder recorder = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (when_ >= least) recorder = recorder_;
  }
  if (!recorder) return nullptr;
  const PythonKept kept;  // memory is freed while a Python exception unwinds, too
  return recorder();
}

/// Under the lock.
AllocationLog::TraceEntry AllocationLog::entry_of(const Event& event, c10::approx_time_t time,
                                                  Context context) {
  if (when_ < When::ALLOC) context = nullptr;
  return {event.action,
          static_cast<c10::DeviceIndex>(event.device),
          reinterpret_cast<size_t>(event.address),
          event.bytes,
          event.stream,
          event.pool,
          time,
          std::move(context),
          compile_contexts.empty() ? "N/A" : compile_contexts.back(),
          user_metadata_of_thread};
}

/// Under the lock.
AllocationLog::TraceEntry AllocationLog::enter(const Event& event, c10::approx_time_t time,
                                               Context context) {
  TraceEntry entry = entry_of(event, time, std::move(context));
  if (enabled() && std::find(skipped_.begin(), skipped_.end(), event.action) == skipped_.end()) {
    std::deque<TraceEntry>& ring = entries_[event.device];
    ring.push_back(entry);
    while (ring.size() > entries_most_) ring.pop_front();
  }
  return entry;
}

/// Under the lock. `context`: of the call that is being noted, and that brought a segment along.
void AllocationLog::enter_heard(const Context& context) {
  std::vector<Heard> heard;
  {
    std::lock_guard lock(heard_mutex_);
    heard.swap(heard_);
  }
  for (const Heard& each : heard) {
    const MemoryEvent& event = each.event;
    if (event.kind == MemoryEvent::Kind::free_completed) {
      auto found = awaited_.find(event.address);
      if (found == awaited_.end()) continue;
      enter(found->second, each.time, live_[event.address]);
      live_.erase(event.address);
      awaited_.erase(found);
      continue;
    }
    const bool made = event.kind == MemoryEvent::Kind::segment_made;
    enter({made ? TraceEntry::SEGMENT_ALLOC : TraceEntry::SEGMENT_FREE, each.device, event.address,
           event.bytes, event.stream, {0, 0}},
          each.time, context);
    if (!made)
      segments_.erase(event.address);
    else if (context)
      segments_[event.address] = context;
  }
}

void AllocationLog::heard(int device, const MemoryEvent& event) {
  if (!noting()) return;
  std::lock_guard lock(heard_mutex_);
  heard_.push_back({device, event, c10::getApproximateTime()});
}

void AllocationLog::settle() {
  if (!noting()) return;
  Context context = gather(When::ALL);
  std::lock_guard lock(mutex_);
  enter_heard(context);
}

void AllocationLog::note(const Event& event) {
  const bool allocation = event.action == TraceEntry::ALLOC || event.action == TraceEntry::OOM;
  Context context = gather(allocation ? When::STATE : When::ALL);
  std::vector<Tracker> trackers;
  std::optional<TraceEntry> entry;
  {
    std::lock_guard lock(mutex_);
    enter_heard(context);
    const bool freed = event.action == TraceEntry::FREE_REQUESTED ||
                       event.action == TraceEntry::FREE_COMPLETED;
    if (event.action == TraceEntry::ALLOC && context) live_[event.address] = context;
    if (auto found = live_.find(event.address); freed && found != live_.end()) {
      if (!context) context = found->second;
      if (event.action == TraceEntry::FREE_COMPLETED) live_.erase(found);
    }
    entry = enter(event, c10::getApproximateTime(), std::move(context));
    trackers = trackers_;
  }
  for (const Tracker& tracker : trackers) tracker(*entry);
}

void AllocationLog::note_segment(const Event& event, bool enter) {
  Context context = gather(When::ALL);
  std::vector<Tracker> trackers;
  std::optional<TraceEntry> entry;
  {
    std::lock_guard lock(mutex_);
    enter_heard(context);
    const c10::approx_time_t now = c10::getApproximateTime();
    entry = enter ? this->enter(event, now, context) : entry_of(event, now, context);
    trackers = trackers_;
  }
  for (const Tracker& tracker : trackers) tracker(*entry);
}

void AllocationLog::awaits(const Event& event) {
  std::lock_guard lock(mutex_);
  awaited_.insert_or_assign(event.address, event);
}

void AllocationLog::annotate(int device,
                       const std::vector<std::pair<std::string, std::string>>& words) {
  if (!enabled()) return;
  Annotation entry(static_cast<c10::DeviceIndex>(device), c10::getApproximateTime());
  for (const auto& [name, value] : words) entry.recordUserMetadata(name, value);
  std::lock_guard lock(mutex_);
  annotations_.push_back(std::move(entry));
  while (annotations_.size() > entries_most_) annotations_.pop_front();
}

void AllocationLog::annotate_block(const Event& event, const std::string& words) {
  std::string before = std::exchange(user_metadata_of_thread, words);
  note(event);
  user_metadata_of_thread = std::move(before);
}

void AllocationLog::push_compile_context(const std::string& words) {
  compile_contexts.push_back(words);
}

void AllocationLog::pop_compile_context() {
  if (!compile_contexts.empty()) compile_contexts.pop_back();
}

void AllocationLog::set_user_metadata(const std::string& words) { user_metadata_of_thread = words; }

std::string AllocationLog::user_metadata() { return user_metadata_of_thread; }

AllocationLog::Context AllocationLog::context_of(const void* address) {
  if (!enabled()) return nullptr;
  std::lock_guard lock(mutex_);
  auto found = live_.find(address);
  return found == live_.end() ? nullptr : found->second;
}

AllocationLog::Context AllocationLog::context_of_segment(const void* address) {
  if (!enabled()) return nullptr;
  std::lock_guard lock(mutex_);
  auto found = segments_.find(address);
  return found == segments_.end() ? nullptr : found->second;
}

std::vector<std::vector<AllocationLog::TraceEntry>> AllocationLog::traces(int device_count) {
  std::lock_guard lock(mutex_);
  std::vector<std::vector<TraceEntry>> out(device_count);
  for (int device = 0; device < device_count; ++device) {
    auto found = entries_.find(device);
    if (found == entries_.end()) continue;
    out[device].assign(found->second.begin(), found->second.end());
    convert_times(out[device]);
  }
  return out;
}

std::vector<AllocationLog::Annotation> AllocationLog::annotations() {
  std::lock_guard lock(mutex_);
  std::vector<Annotation> out(annotations_.begin(), annotations_.end());
  convert_times(out);
  return out;
}

}  // namespace firn::pytorch
