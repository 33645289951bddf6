// Lines for stderr from threads that must not be held up by it: a line is queued, and written when
// stderr takes it without blocking (a terminal that was stopped, a pipe without a reader).
//
// Owns: process-wide state; a forked child begins anew. Locks: one for the queue, a leaf, under
// which nothing is written; one writer at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <new>
#include <string>
#include <string_view>

#include "firn/ranked_mutex.h"

namespace firn {

class Said {
 public:
  static constexpr size_t lines_most = 256;  // that wait; further ones are counted

  /// The process's own, for stderr. Never destroyed.
  static Said& of_process();
  explicit Said(int fd) : fd_(fd) { spare_.reserve(spare_bytes); }

  /// `line` without its end. Any thread, under any lock; never blocks. If the process is out of
  /// memory, the beginning of the first such line is kept, and further ones are counted.
  void say(std::string_view line) noexcept;
  bool waits() const { return waiting_.load(std::memory_order_acquire); }
  /// Writes the waiting lines, as far as stderr takes them within `patience`. Not under a lock that
  /// others need. Does nothing in a thread with a table of descriptors of its own.
  void write(std::chrono::milliseconds patience = std::chrono::milliseconds(0)) FIRN_NOT_HELD;

 private:
  static constexpr size_t spare_bytes = 1024;

  bool any();
  bool next_line();
  bool write_all(std::chrono::steady_clock::time_point end);
  bool write_some(std::string& text);

  const int fd_;
  std::atomic<bool> waiting_{false};
  RankedMutex<Rank::stderr_lines> mutex_;  // of the next three
  std::deque<std::string> lines_;
  std::string spare_;                      // for a line when memory is out
  uint64_t dropped_ = 0;
  RankedMutex<Rank::stderr_writer> writing_;
  std::string rest_;                // of a line written in part; the writer's
};

/// A line on the process's stderr, as soon as a thread without a lock comes by. (Lost if there has
/// never been memory even for the queue.)
inline void say(std::string_view line) noexcept try {
  Said::of_process().say(line);
} catch (const std::bad_alloc&) {
}

/// The same at once, as far as stderr takes it; not under a lock that others need.
inline void say_now(std::string_view line) FIRN_NOT_HELD {
  Said& said = Said::of_process();
  said.say(line);
  said.write();
}

}  // namespace firn
