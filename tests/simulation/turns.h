// Several program threads of which one runs at a time: who goes on is drawn from a seed, at points
// where no lock of the engine's is held.
#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

#include "tests/simulation/draw.h"

namespace firn::sim {

class Turns {
 public:
  Turns(unsigned threads, uint64_t seed) : alive_(threads, true), random_(seed) {}
  /// Waits until it is thread `me`'s turn for the first time.
  void begin(unsigned me);
  /// Lets another go on, maybe; true when one did before this returned.
  bool yield();
  /// The calling thread runs no more.
  void end();
  unsigned switches() const { return switches_; }

 private:
  void pass(std::unique_lock<std::mutex>& lock, unsigned to);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> alive_;
  Draw random_;
  unsigned current_ = 0, switches_ = 0;
};

}  // namespace firn::sim
