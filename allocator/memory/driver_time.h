// How long threads are in calls of the driver: on the program's threads and on Firn's own, and how
// much of it under an engine's lock.
//
// Owns: counters. Locks: none. Counting costs two looks at the clock for each call of the driver;
// paths that call no driver pay nothing.
#pragma once

#include <atomic>
#include <cstdint>

#include "firn/driver.h"
#include "firn/ranked_mutex.h"

namespace firn {

/// The same table, whose calls count their time by the wall clock. One library a process: a table
/// that was made before goes on with the library of the last one.
Driver timed(const Driver& driver);

/// The calling thread's time in calls of a timed() table, ns.
uint64_t thread_driver_ns();
/// The calling thread is Firn's own, not the program's, from now on.
void thread_serves();

/// One engine's, in ns. `program`, `service`: on those threads; `locked`: under the engine's lock,
/// part of the former two.
struct DriverTimes {
  struct Of {
    std::atomic<uint64_t> all_ns{0}, locked_ns{0};
    std::atomic<uint64_t> waited_ns{0};  // for the lock
  };
  Of program, service;
  Of& of_this_thread();
};

/// Counts what the thread spends in the driver until the scope ends; a scope within another adds
/// nothing.
class DriverTimeScope {
 public:
  explicit DriverTimeScope(DriverTimes& times);
  ~DriverTimeScope();
  DriverTimeScope(const DriverTimeScope&) = delete;
  DriverTimeScope& operator=(const DriverTimeScope&) = delete;

 private:
  DriverTimes& times_;
  const uint64_t begun_ns_;
};

/// A mutex that counts what its holders spend in the driver, and how long others wait for it.
class DriverTimedMutex {
 public:
  explicit DriverTimedMutex(DriverTimes& times) : times_(times) {}
  void lock();
  bool try_lock();
  void unlock();

 private:
  RankedMutex<Rank::engine> mutex_;
  DriverTimes& times_;
  uint64_t begun_ns_ = 0;  // the holder's
};

}  // namespace firn
