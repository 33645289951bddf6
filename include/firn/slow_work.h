// Work that the program has to wait for and that may take long: one line on stderr says so while it
// lasts, once for each kind in a process.
//
// Owns: process-wide state, and a thread from the first such work on, which sleeps while there is
// none. Locks: one, a leaf; the words are made under it.
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

  /// Reports work that takes longer than `patience`, also in short stretches: each counts, and is
  /// forgotten after twice its length without such work.
  SlowWorks(std::chrono::nanoseconds patience, Say say);
  ~SlowWorks();
  /// The process's own, which writes to stderr. Never destroyed.
  static SlowWorks& of_process();
  /// Starts the watching thread, as the first work would. For a thread that has stderr, where the
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

/// Such work is done from its construction to its destruction. The words describe it ("laying out
/// ..."), and refer to things that live as long. Costs a lock and, now and then, a wake-up.
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
