// The calls made to the driver, and which of them Firn saw: for the statistics and `firn doctor`.
// Owns the lists; a lock for those, which change when an entry is asked for; counters need none.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "allocator/preload/doors.h"

namespace firn::preload {

/// A number of the report, under its name. Static objects only: never taken back.
class Count {
 public:
  explicit Count(const char* name);
  /// Not exact: an increment may be lost between threads, for the cost of a plain store.
  void add(uint64_t more = 1) {
    count_.store(count_.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  uint64_t value() const { return count_.load(std::memory_order_relaxed); }
  const char* name() const { return name_; }
  const Count* next() const { return next_; }

 private:
  const char* name_;
  std::atomic<uint64_t> count_{0};
  const Count* next_;
};

/// An entry was resolved by its exported name (`door`: it is handled).
void saw_name(const char* entry, bool door);
/// cuGetProcAddress answered for `symbol`; `known`: what came back; `found`: something did.
void saw_symbol(const char* symbol, int version, bool found, const Known& known);
/// A gap that Firn knows of, in words: for the statistics' "unseen".
void note_unseen(const std::string& words);
std::vector<std::string> noted_unseen();

/// The report, as JSON.
std::string coverage_json();
/// At exit, writes the statistics of a process that used the driver but none of Firn's memory,
/// where FIRN_STATS names a file that does not exist yet.
void write_coverage_alone();

}  // namespace firn::preload
