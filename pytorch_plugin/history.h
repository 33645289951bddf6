// torch.cuda.memory._record_memory_history(): the last allocations and frees, with the stack traces
// that torch's recorder gathers.
//
// Owns: a ring of entries per device, traces of live blocks. Locks: its own; the recorder, which
// may take the GIL, is called without it.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace firn::pytorch {

class History {
 public:
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  using Context = std::shared_ptr<c10::GatheredContext>;
  using Recorder = c10::CachingDeviceAllocator::CreateContextFn;
  using When = c10::CachingDeviceAllocator::RecordContext;

  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  void set(bool enabled, Recorder recorder, size_t entries_most, When when, bool clear,
           const std::vector<std::string>& skip);
  void note(Entry::Action action, int device, const void* address, size_t bytes, void* stream,
            c10::MempoolId_t pool);
  /// The trace of the live block at `address`, or null.
  Context context_of(const void* address);
  std::vector<std::vector<Entry>> traces(int device_count);

 private:
  std::atomic<bool> enabled_{false};
  std::mutex mutex_;
  Recorder recorder_ = nullptr;
  When when_ = When::NEVER;
  size_t entries_most_ = 0;
  std::vector<Entry::Action> skipped_;
  std::unordered_map<int, std::deque<Entry>> entries_;
  std::unordered_map<const void*, Context> live_;
};

}  // namespace firn::pytorch
