// Policy::lifetime: blocks of an iteration that never leave have planned places in a region of
// their stream (region.h, lifetimes/places.h). A plan only guesses which allocation comes next: a
// place is handed out when what overlaps it is freed, on the same stream, as ready blocks are; an
// allocation whose place is taken, or cannot be mapped, gets a block of its own.
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

/// The place planned for the identity's next block, which the history knows by so many bytes.
Placing::Place* EngineImpl::place_of(Identity identity, uint64_t known_as) {
  if (!placing_.active || identity >= placing_.of.size()) return nullptr;
  Placing::Place* found = nullptr;
  for (uint32_t i = placing_.of[identity]; i != 0; i = placing_.places[i - 1].next) {
    Placing::Place& place = placing_.places[i - 1];
    if (place.known_as != known_as) continue;
    found = &place;
    if (!place.barred && place.region->free(place.address, place.address + place.bytes)) break;
  }
  return found;
}

/// The place of the foreseen allocation, if no block in use overlaps it; null: there is none.
Placing::Place* EngineImpl::next_place(unsigned stream, size_t bytes) {
  Region* region = placing_.active ? region_of(stream) : nullptr;
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
    Placing::Place* place = place_of(coming.identity, known_as);
    const bool there = place && place->region == region && !place->barred &&
                       place->bytes >= asked &&
                       region->free(place->address, place->address + place->bytes);
    return there ? place : nullptr;
  }
  return nullptr;
}

/// A block for the allocation in its foreseen place; null: it needs memory of its own.
Block* EngineImpl::placed_block(Lock& lock, unsigned stream, size_t bytes) {
  for (int attempt = 0; attempt < 4; ++attempt) {
    Placing::Place* place = next_place(stream, bytes);
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
    Block* block = settle_in(*place, stream, bytes);
    counted_.placed += block != nullptr;
    return block;
  }
  return nullptr;
}

/// Hands out the place's block: no block in use overlaps it, and it is mapped.
Block* EngineImpl::settle_in(Placing::Place& place, unsigned stream, size_t bytes) {
  Block* block = place.block;
  if (!block) {
    block = table_.make();
    if (!block) return nullptr;
    block->address = place.address;
    block->place_bytes = place.bytes;
    block->place = static_cast<uint32_t>(&place - placing_.places.data());
    block->stream = static_cast<uint16_t>(stream);
    block->pages = pages_of(bytes);
    block->size_class = static_cast<uint16_t>(size_class::count);
    block->mapped = block->device = 0;
    block->use.store(0, std::memory_order_relaxed);
    block->word.set(word::placed);
    transit(*block, Event::allocate, life_flags | word::small | word::many_uses | word::zero_copy);
    place.block = block;
  } else {
    transit_own(*block, Event::reuse);
  }
  place.region->use(*block);
  return block;
}

/// Takes back freed blocks: others may have their places.
void EngineImpl::collect_places(Region& region) {
  ReadyBlocks& blocks = ready(region.stream());
  while (Block* block = blocks.placed.pop(table_)) {
    (void)uses_.over(*block);  // forgets those that are
    for (const Use use : block->more_uses) region.others.push_back(use);
    block->more_uses.clear();
    block->word.clear(word::many_uses);
    const Use last{block->use.load(std::memory_order_relaxed)};
    region.leave(*block, streams_.over(last) ? Use{} : last);
    if (!placing_.active || !planned_place(*block)) drop_placed(*block);
  }
}

/// The place that was planned for the block; null: that plan is gone.
Placing::Place* EngineImpl::planned_place(const Block& block) {
  if (block.place_bytes == 0 || block.place >= placing_.places.size()) return nullptr;
  Placing::Place& place = placing_.places[block.place];
  return place.block == &block ? &place : nullptr;
}

/// Drops a ready block whose place is not needed: its descriptor can serve another.
void EngineImpl::drop_placed(Block& block) {
  if (Placing::Place* place = planned_place(block)) place->block = nullptr;
  (void)take_events();  // the descriptor's number will be another block's
  transit(block, Event::reclaim, word::placed);
  ++block.generation;
  block.place_bytes = 0;
  block.recorded_streams.clear();
  block.arrival = {};
  block.use.store(0, std::memory_order_relaxed);
  table_.recycle(&block);
}

/// The program does something else: blocks in places stay there until they are freed.
void EngineImpl::stop_placing() {
  placing_.active = false;
  for (const auto& region : region_owner_)
    ready(region->stream()).placing.store(false, std::memory_order_relaxed);
}

/// Bars the block's place: its address may be used by others than its stream.
void EngineImpl::bar_place(const Block& block) {
  if (Placing::Place* place = planned_place(block)) place->barred = true;
}

}  // namespace firn
