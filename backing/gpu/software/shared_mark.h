// Marks of events that several processes use: two counters in memory that all of them map, of how
// often the event was recorded and how far those marks are complete.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "abi.h"

namespace firn::software {

/// In shared memory; the serial number distinguishes later users of the same counters.
struct SharedMarkCounters {
  std::atomic<uint64_t> serial, recorded, completed;
};

struct SharedMark {
  SharedMarkCounters* counters = nullptr;
  void* mapped = nullptr;  // imported: to be unmapped at the end; else null
  uint32_t index = 0;      // else: of this process's own counters
  ~SharedMark();

  /// The number of a new mark, which is to be completed.
  uint64_t record() { return counters->recorded.fetch_add(1) + 1; }
  void complete(uint64_t number);
  uint64_t recorded() const { return counters->recorded.load(); }
  bool complete_to(uint64_t number) const { return counters->completed.load() >= number; }
};

/// With counters among this process's own; null: there are none left.
std::shared_ptr<SharedMark> make_shared_mark();
/// Writes the 64 bytes by which another process finds it.
bool export_mark(const SharedMark& mark, CUipcEventHandle* handle);
/// Null: its process has ended, forbids it (ptrace's permission), or has destroyed the event.
std::shared_ptr<SharedMark> import_mark(const CUipcEventHandle& handle);

}  // namespace firn::software
