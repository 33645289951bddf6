// What to fetch, what to make valid elsewhere ahead, and what leaves when room is short, when every
// next use is known. A pure function of what is where and of what comes in one period.
//
// Two looks ahead. Cover: at every instant of the period, what is alive beyond the capacity has to
// be away. What is away or valid elsewhere covers the instants until it is written again: until
// then it leaves without I/O, however often it is read. For the rest blocks are made valid
// elsewhere, as early as possible and as few as possible: those that are not written until then, of
// them those that are used last, or written last (`prefer`). Nothing else is worth a write, where
// writes wear something out; where they do not (`eager`), what comes back comes the earlier the
// more can leave for it, and the way out is never idle. The window goes as far as there is room, at
// every instant, for everything used until then that is on the device or fetched now, beside what
// is allocated and freed meanwhile and what cannot leave without being written: so far it is safe
// to fetch, in the order of next use, the last of it in part. What leaves is what is used last
// (Belady, A study of replacement algorithms, 1966).
//
// Cost: O(n log n) for n steps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace firn::lifetimes {

inline constexpr uint64_t no_use = UINT64_MAX;

/// A block that may move, or one that is born within the period. Sizes in grains.
struct Item {
  uint64_t size = 0;
  uint64_t on_device = 0;  // the rest of it is away; 0 for one that is not born yet
  uint64_t clean = 0;      // of on_device: valid elsewhere too
  bool born = false;       // within the period
  /// Of an item that is there at the end of the period: the one that plays its part at the start
  /// (itself, when it is never freed); none: nothing is known of its next use.
  static constexpr uint32_t none = UINT32_MAX;
  uint32_t again = none;
  uint64_t assumed = no_use;  // its next use where no step tells of one, events from now
};

/// Something that comes, of interest to memory. In order.
struct Step {
  enum class Kind : uint8_t { birth, death, read, write };
  uint64_t ahead = 0;  // events from now
  Kind kind = Kind::read;
  uint32_t item = 0;
};

/// Of what covers as much: what is used last comes back last, and makes the fewest wait; what is
/// written last comes back at all times, which keeps slow ways in busy.
enum class Prefer : uint8_t { used_last, written_last };

struct Situation {
  uint64_t capacity = 0;  // grains for items: the budget without what cannot move
  uint64_t spare = 0;     // grains to cover beyond what lacks, so that none is waited for; no
                          // more than lacks at the peak
  uint64_t period = 0;    // events; steps go no further
  std::span<const Item> items;
  std::span<const Step> steps;
  bool eager = false;  // copies cost nothing while nothing else is to be copied out
  Prefer prefer = Prefer::used_last;
};

struct Decision {
  /// Items away or partly away, by next use: each has room from now until then, the last of them so
  /// many grains of it, those on the device included.
  std::vector<uint32_t> fetch;
  uint64_t last_grains = 0;
  /// What to make valid elsewhere, in that order: so much of the item is to be away or clean.
  struct Leaving {
    uint32_t item;
    uint64_t grains;
    bool spare;  // beyond what lacks: nothing else is to wait for it
  };
  std::vector<Leaving> leaving;
  /// Items on the device, the farthest next use first; without those that die before it.
  std::vector<uint32_t> farthest;
  std::vector<uint64_t> next_use;     // of each item: events from now; no_use: none known, or dead
  std::vector<uint64_t> next_change;  // the same of the next write or death
  uint64_t lacking = no_use;          // events from now: the first that has no room without a write
  uint64_t window = 0;                // events from now until which fetch holds
  uint64_t peak = 0;  // grains there would be at most, were everything on the device
};

Decision decide(const Situation& situation);

}  // namespace firn::lifetimes
