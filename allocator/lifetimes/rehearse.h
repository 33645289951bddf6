// A rehearsal: how long iterations take when decide() is carried out on a machine of given memory
// and bandwidths, without any engine, device or clock. A pure function, the same every time.
//
// What it leaves out of the engine: the program does not run ahead of the device; mapping costs
// nothing; a transfer is one piece at a time on each channel, chosen when the channel is idle, and
// a block that is waited for arrives piece by piece as room comes, where the engine waits for the
// room of all of it.
//
// Cost: O(steps + transfers * victims looked at) for a period, beside that of decide(), which is
// called up to `decisions` times a period.
#pragma once

#include <cstdint>
#include <span>

#include "allocator/lifetimes/channel.h"
#include "allocator/lifetimes/decide.h"

namespace firn::lifetimes {

/// Each channel carries one piece at a time, independent of the others.
struct RehearsalMachine {
  uint64_t capacity = 0;                   // grains on the device for items
  uint64_t host = 0;                       // grains of host memory, for passage and for keeping
  uint64_t grain_bytes = 2 << 20;        // bytes
  uint64_t piece = 16;                     // grains of a transfer, at most
  double bytes_s[channel_count] = {};           // of each channel; write and read 0: no store
  bool out_while_read = false;             // copies out are made of what kernels in flight read
  bool has_store() const { return bytes_s[2] > 0 && bytes_s[3] > 0; }
  /// Nanoseconds for so many grains.
  uint64_t ns(Channel channel, uint64_t grains) const;
};

/// What can be chosen.
struct Tuning {
  uint64_t spare_part = 16;  // 1/n of the capacity is covered beyond what lacks; 0: nothing
  bool eager = false;        // see Situation
  uint64_t stale_part = 0;  // decided anew when 1/n of the capacity was copied; 0: only by steps
};

/// One change, for invariants. Grains; `block` is a number of one life, never given twice.
struct Happening {
  enum class What : uint8_t {
    taken,     // device memory by the piece, for a birth or for its arrival
    given,     // device memory of the piece, back
    transfer,  // booked from `ns` to `end_ns`
    change,    // by the program: copies elsewhere are worth nothing any more
    compute,   // kernels run from `ns` to `end_ns`
    use,       // by the kernels that run next: all of the block is on the device until they end
  };
  What what = What::taken;
  uint64_t ns = 0, end_ns = 0;
  Channel channel = Channel::host_out;
  uint32_t block = 0, piece = 0;
  uint64_t grains = 0;
  uint64_t device = 0, host = 0;  // grains taken now, on the device and in host memory
};

class RehearsalObserver {
 public:
  virtual void happened(const Happening& happening) = 0;

 protected:
  ~RehearsalObserver() = default;
};

struct Rehearsal {
  // One period. The spans are the caller's and stay until rehearse() returns.
  std::span<const Item> items;        // as they are now, see decide.h; on_device of what is born: 0
  std::span<const Step> steps;        // `ahead` is not looked at: the position counts
  std::span<const uint64_t> before_ns;  // of each step: kernels' device time since the last one
  /// Of each item: grains whose copy elsewhere is in the store only, the rest being in host
  /// memory. Empty: nothing is in the store.
  std::span<const uint64_t> in_store;
  uint64_t after_ns = 0;              // kernels' device time between the last step and the end
  unsigned periods = 2;               // how often it is run
  bool ends = false;                  // nothing comes after the last: known to the decisions of it
  unsigned decisions = 128;           // a period at most, and one between two kernels
  RehearsalMachine machine;
  Tuning tuning;
};

/// What lies between two steps with time between them is in use together: it has to fit the device,
/// or the rehearsal ends there with possible == false.
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
