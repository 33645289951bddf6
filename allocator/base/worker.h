// One thread for all work that a service thread must not wait for (plans, pinning of host memory):
// each thread costs a stack and a malloc arena.
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
  /// Waits for the work under way; work that has not begun is dropped.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Runs `work` after all that was posted before; in the caller, now, if no thread or memory is
  /// available. The work throws nothing.
  void post(std::function<void()> work);

 private:
  void run();
  const std::string name_;
  RankedMutex<Rank::worker> mutex_;
  RankedCondition changed_;
  std::vector<std::function<void()>> waiting_;  // few; allocates nothing before the first
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace firn
