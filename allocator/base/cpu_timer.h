// Measures the CPU time of a piece of work.
#pragma once

#include <time.h>

#include <cstdint>

namespace firn {

/// Adds the calling thread's CPU time within the scope, in nanoseconds.
class CpuTimer {
 public:
  explicit CpuTimer(uint64_t& to) : to_(to), begin_(now()) {}
  ~CpuTimer() { to_ += now() - begin_; }
  CpuTimer(const CpuTimer&) = delete;
  CpuTimer& operator=(const CpuTimer&) = delete;

 private:
  static uint64_t now() {
    timespec time{};
    if (::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0) return 0;
    return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
  }
  uint64_t& to_;
  const uint64_t begin_;
};

}  // namespace firn
