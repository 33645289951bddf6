// What to fetch, and what may leave, when every next use is known. A pure function of what is where
// and of what comes.
//
// The window: going through what comes, everything that is used before some event, and is on the
// device or is fetched now, has room at every instant until then, beside what is allocated and freed
// meanwhile. Blocks away are fetched in the order of their next use as long as the window holds; what
// is used only after its end leaves, the farthest next use first (Belady), and is made valid
// elsewhere ahead of that.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace firn::lifetimes {

inline constexpr uint64_t no_use = UINT64_MAX;

/// A block that may move. Sizes in granules.
struct Item {
  uint64_t next_use = no_use;  // events from now
  uint64_t size = 0;
  uint64_t on_device = 0;      // the rest of it is away
  bool dead = false;           // freed without another use
};

/// Something that comes, of interest to memory. In order.
struct Step {
  enum class Kind : uint8_t { birth, death, use };
  static constexpr uint32_t none = UINT32_MAX;
  uint64_t ahead = 0;    // events from now
  Kind kind = Kind::use;
  uint32_t item = none;  // of a use, or of a death of an item; none: of a block that is yet to be born
  uint64_t size = 0;     // of a birth, and of a death without item
};

struct Situation {
  uint64_t capacity = 0;  // granules for items and births: the budget without what cannot move
  std::span<const Item> items;
  std::span<const Step> steps;
};

struct Decision {
  std::vector<uint32_t> fetch;     // items, by next use: each has room until then
  std::vector<uint32_t> farthest;  // items on the device, the farthest next use first; without dead ones
  uint64_t window = 0;             // events from now until which the above holds
  bool pressure = false;           // the steps go further than the window
};

Decision decide(const Situation& situation);

}  // namespace firn::lifetimes
