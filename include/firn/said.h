// Lines for stderr from threads that must not be held up by it: a line is queued, and written when
// stderr takes it without blocking (a terminal that was stopped, a pipe that nobody reads).
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
#include <string>
#include <string_view>

#include "firn/ranked_mutex.h"

namespace firn {

class Said {
 public:
  static constexpr size_t lines_most = 256;  // that wait; of further ones the number is said

  /// The process's own, for stderr. Never destroyed.
  static Said& of_process();
  explicit Said(int fd) : fd_(fd) {}

  /// `line` without its end. Any thread, under any lock; never blocks.
  void say(std::string_view line);
  bool waits() const { return waiting_.load(std::memory_order_acquire); }
  /// Writes what waits, as far as stderr takes it: for so long it is given the chance. Not under a
  /// lock that others need.
  void write(std::chrono::milliseconds patience = std::chrono::milliseconds(0));

 private:
  bool any();
  bool write_all(std::chrono::steady_clock::time_point end);
  bool write_some(std::string& text);

  const int fd_;
  std::atomic<bool> waiting_{false};
  RankedMutex<Rank::stderr_lines> mutex_;                // of the next two
  std::deque<std::string> lines_;
  uint64_t dropped_ = 0;
  RankedMutex<Rank::stderr_writer> writing_;
  std::string rest_;                // of a line that was written in part; the writer's
};

/// A line on the process's stderr, as soon as somebody without a lock comes by.
inline void say(std::string_view line) { Said::of_process().say(line); }

/// The same at once, as far as stderr takes it; not under a lock that others need.
inline void say_now(std::string_view line) {
  Said& said = Said::of_process();
  said.say(line);
  said.write();
}

}  // namespace firn
