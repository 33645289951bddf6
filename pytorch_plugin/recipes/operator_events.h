// Events around operators on their streams, for how long the device takes for each.
// Owns: the events. Locks: none; one thread at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace firn::pytorch {

class OperatorEvents {
 public:
  explicit OperatorEvents(int device) : device_(device) {}
  OperatorEvents(const OperatorEvents&) = delete;
  OperatorEvents& operator=(const OperatorEvents&) = delete;
  ~OperatorEvents() { clear(); }

  /// The next operator begins, on the thread's current stream, which waited for so long since it
  /// ended its last; and the one that began last ends.
  void begin(uint64_t waited_ns) { events_.push_back({record(), nullptr, waited_ns}); }
  void end() { events_.back().end = record(); }
  void clear();

  size_t size() const { return events_.size(); }
  /// Is the device through with all of them?
  bool over() const;
  // Nanoseconds; 0: not known.
  /// Of an operator.
  uint64_t ns(size_t at) const { return between(events_[at].begin, events_[at].end); }
  /// From its end to the next one's beginning, without the waits there.
  uint64_t gap_ns(size_t at) const;
  /// From one's beginning to another's.
  uint64_t ns_between(size_t from, size_t to) const {
    return between(events_[from].begin, events_[to].begin);
  }

 private:
  cudaEvent_t record() const;
  static uint64_t between(cudaEvent_t from, cudaEvent_t to);

  struct Around {
    cudaEvent_t begin, end;  // null: there was none to be had
    uint64_t waited_ns;      // before it
  };
  const int device_;
  std::vector<Around> events_;
};

}  // namespace firn::pytorch
