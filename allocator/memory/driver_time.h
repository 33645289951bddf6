// Measures the time that threads spend in driver calls: the program's threads, Firn's own, and how
// much of it under an engine's lock.
//
// Owns: counters. Locks: none. Counting costs two clock reads per driver call; paths without driver
// calls pay nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "firn/driver.h"
#include "firn/ranked_mutex.h"
#include "firn/thread_safety.h"

namespace firn {

/// The same table with each call timed by the wall clock. One library per process: a table made
/// earlier calls the library of the last one.
Driver timed(const Driver& driver);

/// The calling thread's time in calls of a timed() table, ns.
uint64_t thread_driver_ns();
/// Counts the calling thread as Firn's own from now on, not as the program's.
void thread_serves();

/// One engine's times, in ns, on the program's threads and on Firn's (`service`). `all`: in the
/// driver; `locked`: the part of it under the engine's lock.
struct DriverTimes {
  struct Of {
    std::atomic<uint64_t> all_ns{0}, locked_ns{0};
    std::atomic<uint64_t> waited_ns{0};  // for the lock
  };
  Of program, service;
  Of& of_this_thread();
};

/// Counts the thread's time in the driver until the scope ends; nested scopes add nothing.
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

/// A mutex that counts its holders' time in the driver, and how long others wait for it.
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

/// The engine's lock, for a scope: std::unique_lock, in words that can be proved.
class FIRN_SCOPED LockedEngine {
 public:
  explicit LockedEngine(DriverTimedMutex& mutex) FIRN_ACQUIRE(engine_lock) : lock_(mutex) {}
  LockedEngine(DriverTimedMutex& mutex, std::defer_lock_t defer) FIRN_NOT_HELD
      : lock_(mutex, defer) {}
  ~LockedEngine() FIRN_RELEASE() {}
  LockedEngine(const LockedEngine&) = delete;
  LockedEngine& operator=(const LockedEngine&) = delete;
  void lock() FIRN_ACQUIRE() { lock_.lock(); }
  bool try_lock() FIRN_TRY_ACQUIRE() { return lock_.try_lock(); }
  void unlock() FIRN_RELEASE() { lock_.unlock(); }
  bool owns_lock() const { return lock_.owns_lock(); }

 private:
  std::unique_lock<DriverTimedMutex> lock_;
};

/// Without that lock, for a scope. Everything may have changed when it ends.
class FIRN_SCOPED UnlockedEngine {
 public:
  explicit UnlockedEngine(LockedEngine& lock) FIRN_RELEASE(engine_lock) : lock_(lock) {
    lock_.unlock();
  }
  ~UnlockedEngine() FIRN_RELEASE() { lock_.lock(); }
  UnlockedEngine(const UnlockedEngine&) = delete;
  UnlockedEngine& operator=(const UnlockedEngine&) = delete;

 private:
  LockedEngine& lock_;
};

}  // namespace firn
