// Events around operators on their streams, for how long the device takes for each.
// Owns: the events. Locks: none; one thread at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace firn::pytorch {

class OperatorEvents {
 public:
  explicit OperatorEvents(int device) : device_(device) {}
  OperatorEvents(const OperatorEvents&) = delete;
  OperatorEvents& operator=(const OperatorEvents&) = delete;
  ~OperatorEvents() { clear(); }

  /// The next operator begins, and the one that began last ends, on the thread's current stream.
  void begin() { events_.emplace_back(record(), nullptr); }
  void end() { events_.back().second = record(); }
  void clear();

  size_t size() const { return events_.size(); }
  /// Is the device through with all of them?
  bool over() const;
  // Nanoseconds of an operator, from its end to the next one's beginning, and from one's beginning
  // to another's; 0: not known.
  uint64_t ns(size_t at) const { return between(events_[at].first, events_[at].second); }
  uint64_t gap_ns(size_t at) const {
    return at + 1 < size() ? between(events_[at].second, events_[at + 1].first) : 0;
  }
  uint64_t ns_between(size_t from, size_t to) const {
    return between(events_[from].first, events_[to].first);
  }

 private:
  cudaEvent_t record() const;
  static uint64_t between(cudaEvent_t from, cudaEvent_t to);

  const int device_;
  std::vector<std::pair<cudaEvent_t, cudaEvent_t>> events_;  // null: there was none to be had
};

}  // namespace firn::pytorch
