// Decides what to fetch, what to make clean (valid elsewhere too) ahead, and what to evict, when
// every next use is known. A pure function of where blocks are and of the steps of one period.
//
// First it covers the excess: at every instant of the period, the pages alive beyond the capacity
// must be away. Pages that are away or clean cover every instant until their block is next
// written: until then it leaves without I/O, however often it is read. For the rest, blocks are
// made clean, as early and as few as possible: those not written until then, and of these the ones
// used last, or written last (`prefer`). No other write is worth the wear it causes.
//
// A use in host memory takes the item from the device until its next use there, and covers it until
// it is written there. It is fetched behind that use only.
//
// Then it fetches, in the order of next use, within a window. The window ends at the first instant
// without room for all of these: the blocks used until then that are on the device or fetched now,
// the blocks born meanwhile, and dirty blocks, which cannot leave at once. The last fetch may be in
// part. Eviction takes the block used last (Belady, A study of replacement algorithms, 1966).
//
// Example: capacity 8, period 5, three blocks of 4 pages: A is on the device and dirty, B is away,
// C is born within the period. Steps: 1 write B, 2 birth C, 3 write C, 4 death C, 5 write A.
//   peak      12: all three are alive at steps 2 to 4, 4 pages above the capacity
//   leaving   A, 4 pages: B, once written at step 1, covers nothing any more; A is written only at
//             step 5, so a copy of it made now is still valid when C needs the room
//   fetch     B, 4 pages (last_pages): the dirty A leaves room for exactly these
//   window    1, and lacking 2: unless A is copied out, the birth of C has no room
//   farthest  A: the only block on the device, next used at step 5
//
// Cost: O(n log n) for n steps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace firn::lifetimes {

inline constexpr uint64_t no_use = UINT64_MAX;

/// A block that may move, or one that is born within the period. Sizes in pages.
struct Item {
  uint64_t size = 0;
  uint64_t on_device = 0;  // the rest of it is away; 0 for one that is not born yet
  uint64_t clean = 0;      // of on_device: valid elsewhere too
  bool born = false;       // within the period
  /// For an item alive at the period's end: the item that plays its part at the start (itself, if
  /// it is never freed); none: its next use is unknown.
  static constexpr uint32_t none = UINT32_MAX;
  uint32_t again = none;
  uint64_t assumed = no_use;  // its next use if no step shows one, events from now
};

/// A coming event that concerns memory. In order.
struct Step {
  enum class Kind : uint8_t { birth, death, read, write, host_read, host_write };
  uint64_t ahead = 0;  // events from now
  Kind kind = Kind::read;
  uint32_t item = 0;
};

/// Breaks ties between blocks that cover the same. A block used last returns last and makes the
/// fewest wait; blocks written last return at all times, which keeps slow channels in busy.
enum class Prefer : uint8_t { used_last, written_last };

struct Situation {
  uint64_t capacity = 0;  // pages for items: the budget without what cannot move
  uint64_t spare = 0;     // pages to cover beyond the shortage, so that no use waits; at most the
                          // peak's shortage
  uint64_t period = 0;    // events; steps go no further
  std::span<const Item> items;
  std::span<const Step> steps;
  Prefer prefer = Prefer::used_last;
};

struct Decision {
  /// Items away or partly away, by next use; each has room from now until that use. The last has
  /// room for last_pages of it, those on the device included.
  std::vector<uint32_t> fetch;
  uint64_t last_pages = 0;
  /// Items to make clean, in that order, until `pages` of the item are away or clean.
  struct Leaving {
    uint32_t item;
    uint64_t pages;
    bool spare;  // beyond the shortage: nothing else may wait for it
  };
  std::vector<Leaving> leaving;
  /// Items on the device, the farthest next use first. An item that dies unused counts as
  /// used when it dies.
  std::vector<uint32_t> farthest;
  std::vector<uint64_t> next_use;     // of each item, on the device: events from now; or no_use
  std::vector<uint64_t> next_change;  // the same of the next write or death
  uint64_t lacking = no_use;          // events from now: the first that needs a write to have room
  uint64_t window = 0;                // events from now until which fetch holds
  uint64_t peak = 0;  // the most pages alive at once, wherever they are
};

Decision decide(const Situation& situation);

/// Pages that are to be made clean ahead and are not yet.
uint64_t pages_to_clean(const Decision& decision, std::span<const Item> items);

}  // namespace firn::lifetimes
