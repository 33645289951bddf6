// Work that the program has to wait for and that may take long: one line on stderr says so while it
// lasts, once for each kind in a process.
//
// Owns: process-wide state, and from the first such work on a thread, which sleeps without end
// while there is none. Locks: one, a leaf; the words are made under it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "firn/ranked_mutex.h"

namespace firn {

class SlowWork;

class SlowWorks {
 public:
  enum class Kind : uint8_t { plan, layout };
  static constexpr size_t kinds = 2;
  using Say = std::function<void(const std::string& line)>;

  /// What takes longer than `patience` is said. So is what often takes a little: each stretch
  /// counts, and is forgotten in twice the time in which there is none.
  SlowWorks(std::chrono::nanoseconds patience, Say say);
  ~SlowWorks();
  /// The process's own, which writes to stderr. Never destroyed.
  static SlowWorks& of_process();
  /// Starts the thread that looks, as the first work would: by a thread that has stderr, where the
  /// work is done by one with a table of descriptors of its own.
  void start();

 private:
  friend class SlowWork;
  using Time = std::chrono::steady_clock::time_point;
  struct Past {
    std::chrono::nanoseconds debt{0};
    Time ended{};
    bool said = false;
  };

  void begin(SlowWork& work);
  void start_watcher();  // mutex_ held
  void end(SlowWork& work);
  void watch();
  bool say_if_due(const SlowWork& work, Time now);
  std::chrono::nanoseconds lasted(const SlowWork& work, Time now) const;

  const std::chrono::nanoseconds patience_;
  const Say say_;
  RankedMutex<Rank::slow_work> mutex_;
  RankedCondition changed_;
  std::vector<SlowWork*> running_;
  Past past_[kinds];
  bool asleep_ = false, stopping_ = false, started_ = false;
  std::thread watcher_;
};

/// From its construction to its destruction such work is done, which the words tell ("laying out
/// ..."); what they refer to lives as long. Costs a lock and, at most now and then, a wake-up.
class SlowWork {
 public:
  using Words = std::function<std::string()>;
  SlowWork(SlowWorks::Kind kind, Words words, SlowWorks& works = SlowWorks::of_process());
  ~SlowWork() { works_.end(*this); }
  SlowWork(const SlowWork&) = delete;
  SlowWork& operator=(const SlowWork&) = delete;

 private:
  friend class SlowWorks;
  SlowWorks& works_;
  const SlowWorks::Kind kind_;
  const Words words_;
  SlowWorks::Time begun_{};
};

}  // namespace firn
