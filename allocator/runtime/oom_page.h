// A page about the moment when memory was refused: how each device's memory was divided, by the
// reason that keeps blocks there, and the blocks themselves, the largest first. One file of HTML,
// readable without a network and without scripts.
// Owns: nothing. Locks: none.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/engine/engine.h"
#include "firn/clock.h"

namespace firn {

struct DeviceThen {
  EngineStats stats;
  std::vector<BlockInfo> blocks;
};

struct OutOfMemoryThen {
  std::string command;  // the program's words
  int process = 0;
  int64_t at_s = 0;     // since 1970
  uint64_t number = 1;  // of the refusal, in this process
  std::string_view words;
  std::vector<DeviceThen> devices;
};

std::string oom_page(const OutOfMemoryThen& then);

/// Writes each refusal's page over the one before. A program that tries sizes until one fits is
/// refused often: pages take at most a 20th of its time, and some are left out for that.
class OomPages {
 public:
  explicit OomPages(Clock& clock = wall_clock()) : clock_(clock) {}
  /// Calls `devices` only to write a page. Says on stderr, each once, where the page is, and why
  /// there is none.
  void write(const std::string& path, std::string_view words,
             const std::function<std::vector<DeviceThen>()>& devices);

 private:
  Clock& clock_;
  std::atomic<uint64_t> refusals_{0}, next_ns_{0};
  std::atomic<bool> writing_{false}, told_of_page_{false}, told_of_failure_{false};
};

}  // namespace firn
