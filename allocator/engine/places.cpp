// Policy::lifetime: blocks of an iteration that never leave have planned places in a region of
// their stream (blocks/placed_blocks.h, lifetimes/places.h): which allocation comes next, and room
// for its place. An allocation whose place is taken, or cannot be mapped, gets a block of its own.
//
// A region's frames are mapped as its places are first used, out of frames that are free and of
// ready blocks, and stay until memory is short or the program does something else.
#include "allocator/engine/hot.h"

namespace firn {

namespace {
// How many of the coming events are searched for the allocation; frees and touches of other threads
// come a little sooner or later than before.
constexpr uint64_t looked_ahead = 8;
}  // namespace

/// The place of the foreseen allocation, if no block in use overlaps it; null: there is none.
PlacedBlocks::Place* EngineImpl::next_place(unsigned stream, size_t bytes) {
  Region* region = placed_.active() ? placed_.region_of(stream) : nullptr;
  if (!region) return nullptr;
  (void)take_events();
  if (!learner_->history().known()) return nullptr;
  collect_places(*region);
  const uint64_t asked = (bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
  const uint64_t known_as = pages_of(bytes) * page_bytes;
  for (uint64_t ahead = 1; ahead <= looked_ahead; ++ahead) {
    const History::Upcoming coming = learner_->history().upcoming(ahead);
    if (coming.kind != EventKind::allocate || coming.bytes != known_as) continue;
    if (learner_->stream_of(coming.identity) != stream) continue;
    // This is the allocation, with or without a place; not the next one of its size.
    return placed_.free_place(*region, coming.identity, known_as, asked);
  }
  return nullptr;
}

/// A block for the allocation in its foreseen place; null: it needs memory of its own.
Block* EngineImpl::placed_block(Lock& lock, unsigned stream, size_t bytes) {
  for (int attempt = 0; attempt < 4; ++attempt) {
    PlacedBlocks::Place* place = next_place(stream, bytes);
    if (!place) return nullptr;
    Region& region = *place->region;
    const uint64_t begin = place->address, end = begin + place->bytes;
    if (const uint32_t lacking = region.lacking(begin, end); lacking > 0) {
      // As much room as for a block of its own, or less.
      Result<Reservation> room = make_room(lock, {lacking});
      if (!room) return nullptr;
      // (While waiting all may have changed.)
      if (next_place(stream, bytes) != place || place->address != begin ||
          region.lacking(begin, end) > room->granules())
        continue;
      *room = Reservation();
      if (!fill_region(region, begin, end)) return nullptr;
    }
    return placed_.settle_in(*place, pages_of(bytes));
  }
  return nullptr;
}

/// Takes back freed blocks: others may have their places.
void EngineImpl::collect_places(Region& region) {
  while (Block* block = placed_.collect(region, ready(region.stream()))) drop_placed(*block);
}

/// Drops a ready block whose place is not needed.
void EngineImpl::drop_placed(Block& block) {
  (void)take_events();  // the descriptor's number will be another block's
  placed_.drop(block);
}

/// The program does something else: blocks in places stay there until they are freed.
void EngineImpl::stop_placing() {
  placed_.stop();
  for (const auto& region : placed_.regions())
    ready(region->stream()).placing.store(false, std::memory_order_relaxed);
}

}  // namespace firn
