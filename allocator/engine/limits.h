// Figures that the engine's parts go by; none is the user's to choose. Private to the engine.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "allocator/base/sizes.h"

namespace firn {

struct EngineLimits {
  static constexpr uint32_t segment_mark = 0x80000000u, region_mark = 0x40000000u;
  static constexpr uint32_t regions_most = 64;
  // So many sizes are remembered of what may have places.
  static constexpr size_t sizes_known_most = 1 << 18;
  // The driver does not call back: copies are found complete by asking, this often while waited
  // for.
  static constexpr uint64_t poll_ns = 100'000;
  // When nothing has left the device for so long, though a thread waits for that: what is waited for
  // may itself wait for what this process enqueues next (another rank's receive). Host memory
  // serves; and where there is none, later, an error.
  static constexpr uint64_t still_ns = 5'000'000'000, still_ns_most = 120'000'000'000;
  static constexpr uint64_t unanswered_ns = 30'000'000'000;
  // So often memory is made room for that the device then refuses (others use it too).
  static constexpr int refusals_most = 8;
  // A failed read is tried again, after pauses that double up to the longest: the copy in the store
  // is the last one. It is said after so long, and who tries what had been given up waits no longer.
  static constexpr uint64_t io_pause_ns = 1'000'000, io_pause_most_ns = 1'000'000'000;
  static constexpr uint64_t said_after_ns = 1'000'000'000;
  // A failed write is tried again in the same way, and a full store so often.
  static constexpr uint64_t full_pause_ns = 1'000'000'000;
  // After a decision so long, for each event of the period, until the next: about three times what
  // it took, so that deciding takes little of a processor and holds the lock little, however short
  // the iterations are.
  static constexpr uint64_t decision_pause_ns = 25;
  static constexpr size_t in_use_most = 64;   // entries of a plan passed over as they are in use
  // Where the SSDs are reading for more than such a part of the time, what comes from there
  // replaces what must come from there too only in the last of so many parts of the period before
  // its use.
  static constexpr double reading_most = .8;
  static constexpr uint64_t swap_part = 128;
  // So much of host memory is not counted on: gaps between pieces of different sizes.
  static constexpr uint64_t host_gaps_part = 32;
  // So many events ahead blocks are made for allocations that come.
  static constexpr uint64_t births_ahead = 4;
  // What ready blocks are wanted for is looked at again after such a part of the period.
  static constexpr uint64_t wants_part = 16;
  // Device times are taken so many events apart, or more.
  static constexpr uint64_t stamp_events = 4;
  // A greedy plan leaves so much of the memory free, for what comes a little sooner than planned.
  static constexpr uint64_t greedy_spare_part = 64;
  static constexpr size_t unit_bytes = 512;
  static constexpr uint32_t units_per_segment = granule_bytes / unit_bytes;
  static constexpr uint32_t segments_most = 1u << 17;
  // Units of so many segments lie in one table, on huge pages.
  static constexpr uint32_t segments_per_table = 128;
  static constexpr size_t unit_table_bytes =
      size_t{segments_per_table} * units_per_segment * sizeof(std::atomic<uint32_t>);
};

}  // namespace firn
