// An engine (engine.h) in numbers: its statistics, its blocks, waits and failures, as they were at
// the call. Bytes, and nanoseconds, unless said otherwise.
// Owns: its words. Locks: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/engine/observer.h"
#include "firn/driver.h"
#include "firn/remaker.h"

namespace firn {

/// Counted as torch's statistics are: current, peak since the last reset, totals.
struct Tally {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
};
struct PoolTallies {           // index 0: all, 1: small (< 1 MiB), 2: large
  Tally allocation[3], segment[3], active[3], inactive_split[3];
  Tally allocated_bytes[3], reserved_bytes[3], active_bytes[3], inactive_split_bytes[3],
      requested_bytes[3];
};

/// An event of a part of a segment that its owner cuts up, or of a segment that is not the engine's
/// memory.
struct PartEvent {
  enum class Kind : uint8_t {
    allocated,
    freed,
    waits,             // freed, while other streams may use it: before `freed`
    waited,
    inactive,          // change of the free parts beside others, in `pieces` and `bytes`
    foreign_made,      // a segment from elsewhere
    foreign_given,
  };
  Kind kind;
  bool large = false;  // the pool that it counts for
  const void* address = nullptr;
  int64_t bytes = 0, requested = 0, pieces = 0;
};

struct PinnedBytes {
  std::string reason;
  uint64_t bytes = 0;
};

struct EngineStats {
  int device = 0;
  uint64_t budget_bytes = 0, device_bytes = 0, peak_device_bytes = 0;      // frames held
  uint64_t allocated_bytes = 0, peak_allocated_bytes = 0;                  // live blocks, rounded
  uint64_t resident_bytes = 0, hosted_bytes = 0, nvme_bytes = 0, host_used_bytes = 0;
  uint64_t in_flight_bytes = 0;       // being copied, written or read
  uint64_t store_written_bytes = 0, store_read_bytes = 0;
  uint64_t spilled_bytes = 0, faulted_bytes = 0, prefetched_bytes = 0;
  uint64_t forwarded_bytes = 0;       // faulted from host memory, no read
  uint64_t summed_bytes = 0;          // in host memory, for firn_verify
  uint64_t host_corrupt = 0;          // wrong sums there, found as bytes left
  uint64_t device_corrupt = 0;        // wrong sums of bytes that came to the device
  uint64_t verified_bytes = 0;        // compared with their copies as they left
  uint64_t unseen_writes = 0;         // of these, stretches that differed: a write was not reported
  uint64_t clean_dropped_bytes = 0;   // left without a copy: a valid one was elsewhere
  // Recipes: those that stand; bytes that left without a copy, to be made again; blocks that were
  // made again, their bytes, and the device's time for it as the recipes have it.
  uint64_t recipes = 0, dropped_bytes = 0;
  uint64_t remakes = 0, remade_bytes = 0, remade_ns = 0;
  RemakeInUse remake;
  uint64_t host_uses = 0, host_use_bytes = 0;  // on_host(): how often, and of how many bytes
  uint64_t stall_ns = 0;  // application threads waited for room or for a fault, until now
  uint64_t stalls = 0;    // number of waits that are over
  // The engine's time, in events of large blocks: touches; once watched, allocations and frees too
  // (with Policy::age, only allocations); and a tick for each block made, faulted or refused.
  // Counting touches alone would cost each of them one more instruction.
  uint64_t touches = 0;
  uint64_t lost_blocks = 0;           // their last copy is wrong, gone, or was not read in time
                                      // (unless it was read later)
  uint64_t evictions = 0, faults = 0;
  uint64_t zero_copy_bytes = 0;       // touched in host memory because the budget had no room
  uint64_t zero_copy_touches = 0;     // and how often
  uint64_t rounding_bytes = 0;        // blocks' bytes beyond what was asked for, now
  uint64_t gap_bytes = 0;             // free in frames that several blocks share
  uint64_t maps = 0, unmaps = 0;      // frames mapped, and unmapped
  uint64_t frames_created = 0, frames_released = 0;
  // Time in calls of the driver, the part of it under the engine's lock, and time spent waiting for
  // that lock. Zero where the driver is not timed (simulation).
  struct InDriver {
    uint64_t ns = 0, locked_ns = 0, lock_waited_ns = 0;
  };
  InDriver program_driver, service_driver;  // on the program's threads, on Firn's
  // Planned places: blocks of an iteration that have one; allocations that got theirs, and that did
  // not; regions as planned, mapped, and in use.
  uint64_t places = 0, placed = 0, places_missed = 0;
  uint64_t region_planned_bytes = 0, region_bytes = 0, region_used_bytes = 0;
  // Bytes beyond what was asked for, of the blocks with places, at their most: with frames of their
  // own, at the least; and in their regions.
  uint64_t waste_without_places = 0, waste_with_places = 0;
  uint64_t maps_without_places = 0, maps_with_places = 0;  // iteration before planning; the last
  uint64_t oom_count = 0, retry_count = 0;
  double spare_fraction = 0;          // written ahead beyond the shortage, as rehearsed
  uint64_t plan_ns = 0;               // CPU time spent on planning; 0 without it
  // Bytes per second while something moved; 0: too little moved so far to say.
  double measured_host_out_bytes_s = 0, measured_host_in_bytes_s = 0;
  double measured_store_write_bytes_s = 0, measured_store_read_bytes_s = 0;
  bool period_found = false;          // the program's iteration is known (Policy::lifetime)
  bool watching = false;
  std::vector<PinnedBytes> pinned;
  std::vector<std::string> trouble;   // full disk, refused registration, ... in words
  std::vector<std::string> notices;   // fault storms, thrash, as they were said
};

/// An iteration of the program's.
struct Iteration {
  // Uses, allocations and frees of blocks in one; 0: it is not known, or all fits.
  uint64_t events = 0;
  uint64_t so_far = 0;  // of them, ever
};

/// One thread's waits in an operator, as its front end reports them afterwards.
struct WaitedBy {
  std::string_view name, site;        // the operator, the program's line; empty: not known
  uint64_t waits = 0, ns = 0;
  Wait longest;
};

/// The part of EngineStats with which a process must not exit successfully.
struct Failures {
  uint64_t lost_blocks = 0, corrupt = 0, unseen_writes = 0;
};

struct BlockInfo {
  void* base = nullptr;
  size_t bytes = 0, requested_bytes = 0;
  size_t capacity = 0;                // what its frames could hold
  CUstream stream = nullptr;
  const char* state = "";             // resident | spilling | hosted | spilled | faulting | ...
  bool small = false, live = false;
  bool recorded = false;              // record_stream: a free waits for other streams
  bool waiting = false;               // freed, and waits for other streams, or for its own bytes
                                      // to come (blocks() only)
  // Of a block in a planned place (blocks() only): the stretch of mapped memory that it shares.
  void* segment = nullptr;
  size_t segment_bytes = 0;
  uint64_t pins = 0;
  const char* stays = nullptr;        // why it cannot leave the device, where it is (blocks() only)
};

}  // namespace firn
