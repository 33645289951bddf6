// A rehearsal: how long iterations take if decide()'s plan is carried out on a machine of given
// memory and bandwidths. It needs no engine, device or clock. A pure function, deterministic.
//
// It simplifies the engine: the program does not run ahead of the device; mapping costs nothing;
// each channel transfers one piece at a time, in the order in which they were begun; and memory is
// freed piece by piece, where the engine unmaps spans.
//
// Example: capacity 8; blocks A, B, C of 4 pages, a piece each. A and B are on the device and in
// host memory, C is in host memory only. Steps: read A, read B, read C, with 10 ns of kernels after
// each. A block takes 15 ns over the link. There are two periods.
//    0 ns  A runs. C cannot come yet: A is in use, and B is needed before C.
//   10     B runs. A leaves at once, as it has a copy, and C arrives until 25.
//   25     C runs, after a stall of 5 ns. B leaves and A arrives until 40. The period ends at 35.
//   40     A runs, after a stall of 5 ns; then B at 55 and C at 70 likewise. The end is at 80.
// Result: first_ns 35, last_ns 45, total_ns 80, stall_ns 20; nothing was copied out.
//
// Cost: O(steps + transfers * victims examined) per period, plus up to `decisions` calls of
// decide().
#pragma once

#include <cstdint>
#include <span>

#include "allocator/lifetimes/channel.h"
#include "allocator/lifetimes/decide.h"

namespace firn::lifetimes {

/// Each channel carries one piece at a time, independent of the others.
struct RehearsalMachine {
  uint64_t capacity = 0;                   // pages on the device for items
  uint64_t host = 0;                       // of host memory, for transfers and for kept copies
  uint64_t page_bytes = 0;                 // bytes; to be set
  uint64_t budget = 0;                     // pages of the device, for all; 0: the capacity
  uint64_t piece = 16;                     // pages of a transfer, at most
  uint64_t span = 0;                       // pages that are fetched as one; 0: a piece
  double bytes_s[channel_count] = {};           // of each channel; write and read 0: no store
  bool has_store() const { return bytes_s[2] > 0 && bytes_s[3] > 0; }
  /// Nanoseconds for so many pages.
  uint64_t ns(Channel channel, uint64_t pages) const;
};

/// Parameters to tune.
struct Tuning {
  uint64_t spare_part = 16;  // 1/n of the capacity is covered beyond the shortage; 0: nothing
};

/// One event, for checks of invariants. Pages; `block` numbers one life and is never reused.
struct Happening {
  enum class What : uint8_t {
    taken,     // the piece takes device memory, for a birth or its arrival
    given,     // the piece gives its device memory back
    transfer,  // booked from `ns` to `end_ns`
    change,    // the program writes the block: copies elsewhere are stale
    compute,   // kernels run from `ns` to `end_ns`
    use,       // by the kernels that run next: all of the block stays until they end
  };
  What what = What::taken;
  uint64_t ns = 0, end_ns = 0;
  Channel channel = Channel::host_out;
  uint32_t block = 0, piece = 0;
  uint64_t pages = 0;
  uint64_t device = 0, host = 0;  // pages taken now, on the device and in host memory
};

class RehearsalObserver {
 public:
  virtual void happened(const Happening& happening) = 0;

 protected:
  ~RehearsalObserver() = default;
};

struct Rehearsal {
  // One period. The spans are the caller's and stay until rehearse() returns.
  std::span<const Item> items;        // as they are now, see decide.h; born ones have on_device 0
  std::span<const Step> steps;        // `ahead` is ignored: the position counts
  std::span<const uint64_t> before_ns;  // of each step: kernels' device time since the last one
  /// Per item: pages whose copy elsewhere is in the store only; the rest is in host memory. Empty:
  /// nothing is in the store.
  std::span<const uint64_t> in_store;
  uint64_t after_ns = 0;              // kernels' device time between the last step and the end
  unsigned periods = 2;               // how often it is run
  bool ends = false;                  // nothing follows the last one: its decisions know that
  unsigned decisions = 128;           // at most per period, and one between two kernels
  RehearsalMachine machine;
  Tuning tuning;
};

/// Steps with no kernel time between them use their blocks together. These must fit the device, or
/// the rehearsal ends there with possible == false.
struct Rehearsed {
  bool possible = false;
  uint64_t total_ns = 0;
  uint64_t stall_ns = 0;           // of total_ns: no kernel runs
  uint64_t first_ns = 0;           // of the first period
  uint64_t last_ns = 0;            // of the last period
  uint64_t bytes[channel_count] = {};   // booked on each channel
  uint64_t decided = 0;            // calls of decide()
};

/// `observer` may be null.
Rehearsed rehearse(const Rehearsal& rehearsal, RehearsalObserver* observer = nullptr);

}  // namespace firn::lifetimes
