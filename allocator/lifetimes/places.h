// Planned places: blocks that an iteration allocates and frees on one stream get addresses in one
// stretch of memory, such that blocks alive at once do not overlap. A pure function of their
// lifetimes; allocator/layout finds the addresses.
//
// A block with a place cannot leave the device. A block that left recently may have a place if then
// (nearly) everything fits, so that it need not leave any more; otherwise it stays free to leave.
// No block has a place if the region would leave less room for other blocks when room is short, or
// if these needed much of the region in every period.
//
// Example: period 8, capacity 100 pages, one stream, pages and granules of 1 byte. Three blocks:
//   A  alive [1, 3)  10 bytes, or 12 pages without a place
//   B  alive [3, 5)   8 bytes, or 12 pages
//   C  alive [2, 4)   5 bytes, or  6 pages
// C is alive with A and with B, but A and B are never alive together: B lies within A's bytes, and
// C beside them. The region is 15 bytes high, as much as A and C at once (asked_bytes), against 18
// without places (rounded_bytes). If others took 90 pages all the time, they and the region would
// be 5 pages over the capacity, where 100 / 32 and one granule, 4, are allowed: no block would
// have a place.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "allocator/lifetimes/events.h"

namespace firn::lifetimes {

/// A block that may have a place.
struct Stay {
  Identity identity = 0;
  uint32_t stream = 0;
  uint64_t birth = 0, death = 0;  // events from now, 1 to the period; death before birth: it is
                                  // alive now
  uint64_t bytes = 0;             // of its place
  uint64_t pages = 0;            // taken without a place
  bool left = false;              // it left the device recently
};

struct PlacesInput {
  uint64_t period = 0;    // events
  uint64_t capacity = 0;  // pages for all large blocks
  /// Pages of all large blocks, including `stays`, from event `ahead` on. In order; the first from
  /// now (0) on.
  struct Load {
    uint64_t ahead = 0, pages = 0;
  };
  std::vector<Load> loads;
  std::vector<Stay> stays;
  uint64_t page_bytes = 0, granule_bytes = 0;  // bytes; to be set
  std::chrono::nanoseconds patience = std::chrono::milliseconds(50);  // for each layout
  uint64_t steps = UINT64_MAX;  // at most, for each layout: see layout::Options
};

struct Places {
  struct Place {
    Identity identity = 0;
    uint32_t stream = 0;
    uint64_t offset = 0, bytes = 0;
    uint64_t pages = 0;  // as in its Stay
  };
  std::vector<Place> places;
  struct Height {
    uint32_t stream = 0;
    uint64_t bytes = 0;  // whole granules
  };
  std::vector<Height> heights;
  uint64_t asked_bytes = 0;    // the most bytes of placed blocks alive at once
  uint64_t rounded_bytes = 0;  // the least they take without places then, in whole granules
  uint64_t occupied_bytes = 0;  // the most of the regions in use at once, in whole granules
  uint64_t height_bytes() const {
    uint64_t bytes = 0;
    for (const Height& height : heights) bytes += height.bytes;
    return bytes;
  }
};

Places plan_places(const PlacesInput& input);

}  // namespace firn::lifetimes
