// The order in which locks are taken. With the build's option `lock_ranks`, a thread that takes
// them in another order ends the process, which says which two; so does a thread that reaches
// none_held() with a lock. Without it these are the standard library's.
//
// Owns: which ranks a thread holds, for each library or program that Firn is linked into.
#pragma once

#include <condition_variable>
#include <mutex>

#include "firn/thread_safety.h"

#ifdef FIRN_LOCK_RANKS
#include <cstdio>
#include <cstdlib>
#endif

namespace firn {

/// A thread takes a lock only while all that it holds rank before it. (try_lock() may take any: it
/// does not wait.) Locks of one rank are never held together.
enum class Rank : unsigned char {
  start,          // Runtime::start()
  runtime,        // the process's Firn: its devices, while one is opened too
  service,        // how many service threads are in the driver
  engine,         // a device's engine
  freed,          // memory freed in a callback of the driver's
  virtual_clock,  // a simulation's
  cipher_store,   // stores in front of another
  paced_store,
  growth,         // a spill file, while it grows
  store,          // slots, completions
  dir_io,         // a directory's requests
  host,           // the process's host memory
  host_trial,     // the answers of trials in a process of its own
  viewers,        // viewers from outside the process
  control,        // and their sockets
  metrics,        // figures for monitoring
  worker,         // a thread of Firn's and what waits for it
  recorder,       // the record of the program
  device_times,   // and the events around it
  copy_gate,
  net,            // firn_verify's last events
  trace,          // rows that are not written yet
  clock,          // the wall clock: to be woken
  slow_work,      // reports of work that takes long
  stderr_writer,  // writes the lines
  stderr_lines,   // that wait
};
inline constexpr int rank_count = static_cast<int>(Rank::stderr_lines) + 1;
inline constexpr const char* rank_names[rank_count] = {
    "start",         "runtime",      "service",     "engine",       "freed",
    "virtual_clock", "cipher_store", "paced_store", "growth",       "store",
    "dir_io",        "host",         "host_trial",  "viewers",      "control",
    "metrics",       "worker",       "recorder",    "device_times", "copy_gate",
    "net",           "trace",        "clock",       "slow_work",    "stderr_writer",
    "stderr_lines"};
static_assert(rank_names[rank_count - 1] != nullptr, "a rank has no name");

#ifdef FIRN_LOCK_RANKS

namespace lock_ranks {

inline thread_local unsigned char held[rank_count];  // how often

[[noreturn]] inline void wrong(const char* what, const char* wanted, int rank) {
  std::fprintf(stderr, "firn: lock ranks: %s %s while the lock of rank %s (%d) is held\n", what,
               wanted, rank_names[rank], rank);
  std::abort();
}

inline void before(Rank wanted) {
  for (int rank = static_cast<int>(wanted); rank < rank_count; ++rank)
    if (held[rank]) wrong("taking the lock of rank", rank_names[static_cast<int>(wanted)], rank);
}
inline void taken(Rank rank) { ++held[static_cast<int>(rank)]; }
inline void given(Rank rank) { --held[static_cast<int>(rank)]; }

}  // namespace lock_ranks

/// Aborts if the calling thread holds a lock with a rank from `first` on, before `end`.
inline void none_held(const char* before, Rank first = Rank::start, int end = rank_count)
    FIRN_NOT_HELD {
  for (int rank = static_cast<int>(first); rank < end; ++rank)
    if (lock_ranks::held[rank]) lock_ranks::wrong("it comes to", before, rank);
}

template <Rank rank>
class RankedMutex {
 public:
  void lock() {
    lock_ranks::before(rank);
    mutex_.lock();
    lock_ranks::taken(rank);
  }
  bool try_lock() {
    if (!mutex_.try_lock()) return false;
    lock_ranks::taken(rank);
    return true;
  }
  void unlock() {
    lock_ranks::given(rank);
    mutex_.unlock();
  }

 private:
  std::mutex mutex_;
};
using RankedCondition = std::condition_variable_any;

#else

inline void none_held(const char*, Rank = Rank::start, int = rank_count) FIRN_NOT_HELD {}
template <Rank>
using RankedMutex = std::mutex;
using RankedCondition = std::condition_variable;

#endif

}  // namespace firn
