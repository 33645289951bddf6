// torch.cuda.memory._record_memory_history(): the last allocations and frees, segments and
// annotations, with the stack traces that torch's recorder gathers; and torch's trace trackers.
//
// Owns: rings of torch's trace entries, traces of live blocks, events from engines that are not
// entered yet. Locks: its own two. No other lock is asked for under them, and recorder and
// trackers, which may take the GIL, are called without them.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "allocator/engine/engine.h"

namespace firn::pytorch {

class AllocationLog {
 public:
  using TraceEntry = c10::CachingDeviceAllocator::TraceEntry;
  using Annotation = c10::CachingDeviceAllocator::AnnotationEntry;
  using Context = std::shared_ptr<c10::GatheredContext>;
  using Recorder = c10::CachingDeviceAllocator::CreateContextFn;
  using Tracker = c10::CachingDeviceAllocator::AllocatorTraceTracker;
  using When = c10::CachingDeviceAllocator::RecordContext;

  /// Is there anything to note for: a recording, or a tracker?
  bool noting() const { return noting_.load(std::memory_order_relaxed); }
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  void set(bool enabled, Recorder recorder, size_t entries_most, When when, bool clear,
           const std::vector<std::string>& skip);

  struct Event {
    TraceEntry::Action action;
    int device;
    const void* address;
    size_t bytes;
    void* stream;
    c10::MempoolId_t pool;
  };
  void note(const Event& event);
  /// A private pool's segment, which trackers may hear of: it stays where it is. `enter`: no engine
  /// reports it.
  void note_segment(const Event& event, bool enter);
  /// A block is freed while other streams may use it: the engine will report when that is over.
  void awaits(const Event& event);
  /// An event from an engine: entered later, by settle() or with the next note.
  void heard(int device, const MemoryEvent& event);
  /// Enters the events that engines have reported.
  void settle();

  void annotate(int device, const std::vector<std::pair<std::string, std::string>>& words);
  /// Adds an entry of that action with the metadata `words`, and the trace of who asked for it.
  void annotate_block(const Event& event, const std::string& words);
  // The calling thread's, as in torch.
  void push_compile_context(const std::string& words);
  void pop_compile_context();
  void set_user_metadata(const std::string& words);
  std::string user_metadata();
  /// Trackers hear of private pools' segments only: they register segments, and others move.
  void add_tracker(Tracker tracker);

  /// The trace of the live block, or segment, at `address`, or null.
  Context context_of(const void* address);
  Context context_of_segment(const void* address);
  std::vector<std::vector<TraceEntry>> traces(int device_count);
  std::vector<Annotation> annotations();

 private:
  struct Heard {
    int device;
    MemoryEvent event;
    c10::approx_time_t time;
  };

  Context gather(When least);
  void enter_heard(const Context& context);
  TraceEntry entry_of(const Event& event, c10::approx_time_t time, Context context);
  TraceEntry enter(const Event& event, c10::approx_time_t time, Context context);

  std::atomic<bool> enabled_{false}, noting_{false};
  std::mutex mutex_;
  Recorder recorder_ = nullptr;
  When when_ = When::NEVER;
  size_t entries_most_ = 0;
  std::vector<TraceEntry::Action> skipped_;
  std::vector<Tracker> trackers_;
  std::unordered_map<int, std::deque<TraceEntry>> entries_;
  std::deque<Annotation> annotations_;
  std::unordered_map<const void*, Context> live_, segments_;
  std::unordered_map<const void*, Event> awaited_;

  std::mutex heard_mutex_;
  std::vector<Heard> heard_;
};

}  // namespace firn::pytorch
