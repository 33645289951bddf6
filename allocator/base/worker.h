// A thread for work that a service thread must not wait for: plans, pinning of host memory. One for
// all of it, for each thread takes a stack and an arena of malloc's.
//
// Owns the thread, which starts with the first work, takes no signals and sleeps in between. Lock:
// its own, a leaf, never held while work is done.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "firn/ranked_mutex.h"

namespace firn {

class Worker {
 public:
  /// `name`: of the thread, at most 15 letters.
  explicit Worker(std::string name) : name_(std::move(name)) {}
  /// Waits for the work under way; what has not begun is not done.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Done after what was posted before; by the caller, now, where there is no thread or no memory
  /// to be had. The work throws nothing.
  void post(std::function<void()> work);

 private:
  void run();
  const std::string name_;
  RankedMutex<Rank::worker> mutex_;
  RankedCondition changed_;
  std::vector<std::function<void()>> waiting_;  // few; makes nothing before the first
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace firn
