// Planned places: blocks of an iteration that are allocated and freed within it, on one stream, get
// addresses in one stretch of memory, such that two that are alive at once do not overlap. A pure
// function of when they live; the addresses are allocator/layout's.
//
// What has a place cannot leave the device. Where (nearly) everything fits with places, what left
// before may have one, for it need not leave any more; elsewhere it stays free to leave. None gets
// one where that would leave less room for the others when room is short, or where much of the
// region would have to be given to the others in every period.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "allocator/lifetimes/events.h"

namespace firn::lifetimes {

/// One that may have a place.
struct Stay {
  Identity identity = 0;
  uint32_t stream = 0;
  uint64_t birth = 0, death = 0;  // events from now, 1 to the period; death before birth: it is
                                  // alive now
  uint64_t bytes = 0;             // of its place
  uint64_t grains = 0;            // that it takes without one
  bool left = false;              // it left the device not long ago
};

struct PlacesInput {
  uint64_t period = 0;    // events
  uint64_t capacity = 0;  // grains for all large blocks
  /// Grains of all large blocks, those in `stays` among them: from an event on, in order; the first
  /// from now (0) on.
  struct Load {
    uint64_t ahead = 0, grains = 0;
  };
  std::vector<Load> loads;
  std::vector<Stay> stays;
  uint64_t grain_bytes = 1, granule_bytes = 1;
  std::chrono::nanoseconds patience = std::chrono::milliseconds(50);  // for each layout
  uint64_t steps = UINT64_MAX;  // and of each at most: see layout::Options
};

struct Places {
  struct Place {
    Identity identity = 0;
    uint32_t stream = 0;
    uint64_t offset = 0, bytes = 0;
    uint64_t grains = 0;  // as in its Stay
  };
  std::vector<Place> places;
  struct Height {
    uint32_t stream = 0;
    uint64_t bytes = 0;  // whole granules
  };
  std::vector<Height> heights;
  uint64_t asked_bytes = 0;    // of all that have places, when they are most
  uint64_t rounded_bytes = 0;  // that they take without places then, at the least, in granules
  uint64_t occupied_bytes = 0;  // in granules, of the regions, when most is
  uint64_t height_bytes() const {
    uint64_t bytes = 0;
    for (const Height& height : heights) bytes += height.bytes;
    return bytes;
  }
};

Places plan_places(const PlacesInput& input);

}  // namespace firn::lifetimes
