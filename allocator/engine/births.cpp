// Policy::lifetime: the allocations that come next find their blocks mapped already, so that the
// driver's calls are made while the device computes and not while the program waits for an address.
// Births (policy/births.h) tells which of them lack a block; the engine makes room for it, and the
// block itself.
#include "allocator/engine/hot.h"
#include "allocator/engine/tiers.h"

namespace firn {

bool EngineImpl::allocate_ahead() {
  const auto make = [this](unsigned stream, size_t bytes) FIRN_HELD {
    return make_ready_ahead(stream, bytes);
  };
  return births_.allocate_ahead(*learner_, parked_, make);
}

/// Has a block mapped for an allocation to come, if there is room that nothing sooner needs.
bool EngineImpl::make_ready_ahead(unsigned stream, size_t bytes) {
  Shape shape = shape_of(pages_of(bytes));
  if (!room_for_birth(frames_.granules_for(shape))) return false;
  shape = shape_of(shape.pages());  // (gaps may have come or gone)
  const uint64_t granules = frames_.granules_for(shape);
  Reservation room = frames_.reserve(granules);
  if (room.granules() != granules) return false;
  if (!mapper_.may_map_ahead()) return false;
  Result<Mapping> begun = begin_block(stream, bytes, std::move(room), shape);
  if (!begun) return false;
  begun->birth = true;
  mapper_.add(std::move(*begun));
  return true;
}

/// A new block that no allocation has asked for yet.
void EngineImpl::make_ready_now(Block& block) {
  transit(block, Event::release);
  ++block.generation;
  block.age.store(next_tick(), std::memory_order_relaxed);
  route_freed(block);
}

/// Frames that are free, or that come from blocks used later and valid elsewhere.
bool EngineImpl::room_for_birth(uint64_t granules) {
  if (frames_.available() >= granules) return true;
  park_ready(false);
  reclaim_parked(granules, true);
  const uint64_t wanted = granules * granule_pages;
  const uint64_t soon = pages_soon();
  if (soon < wanted)
    EngineTiers::carry_out(*this).evict_farthest(wanted - soon, {}, plan_.window, true);
  movement_.finish_spills();
  return frames_.available() >= granules;
}

}  // namespace firn
