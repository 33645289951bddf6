// The way in, until its bytes begin to come (movement/arrive.cpp): room is made, and the same
// address is mapped again, on demand or ahead. And the end of a block that was freed on that way.
#include <utility>

#include "allocator/engine/hot.h"

namespace firn {

/// Maps what is missing of the block and begins to bring its bytes. While room is made the block
/// keeps its state: a part that is still mapped may leave for others too, and the caller checks
/// again when this returns. `anyway`: to host memory when the budget has no room.
Result<void> EngineImpl::begin_fault(Lock& lock, Block& block, bool anyway) {
  const uint32_t generation = block.generation;
  block.age.store(next_tick(), std::memory_order_relaxed);
  Error short_of_memory;  // the device's last refusal of this memory
  for (int attempt = 0;;) {
    if (block.coming > 0) {
      if (!carry_out_mappings(lock)) wait(lock, poll_ns);
      return {};
    }
    if (block.going > 0) {
      if (!carry_out_unmappings(lock, block)) wait(lock, poll_ns);
      return {};
    }
    const uint64_t granules = granules_for(block, block.pages - block.mapped);
    Result<Reservation> room = attempt < refusals_most
                                   ? make_room(lock, {.granules = granules, .block = &block})
                                   : Result<Reservation>(short_of_memory);
    Result<void> provided;
    if (room && room->granules() > 0)
      provided = mapper_.provide(lock,
                                 block.shape.shared()
                                     ? block.shape
                                     : Shape{0, static_cast<uint32_t>(room->granules()), 0},
                                 *room);
    if (block.generation != generation || block.coming > 0 || block.going > 0) return {};
    if (block.state() == State::spilling) movement_.keep(block);
    State state = block.state();
    if (state != State::hosted && state != State::spilled && state != State::faulting) return {};
    const uint64_t missing = block.pages - block.mapped;
    if (missing == 0) return {};
    if (room && room->granules() < granules_for(block, missing)) continue;
    if (!room && room.error().code == Code::out_of_memory && attempt < refusals_most &&
        granules_for(block, missing) == 0) {  // parts of shared frames came free meanwhile
      ++attempt;
      continue;
    }
    if (!room && room.error().code == Code::out_of_memory && !anyway)
      anyway = places_in_way(granules_for(block, missing));
    if (!room && !(anyway && room.error().code == Code::out_of_memory)) return room.error();
    if (!room && ask_for_host(lock)) continue;
    Result<void> mapped;
    if (!room)
      mapped = map_host_fault(lock, block, room.error());
    else if (!provided)
      mapped = provided.error();
    else if (Result<Mapping> claimed = mapper_.claim(block, missing, std::move(*room)); claimed)
      mapped = carry_out(lock, *claimed);
    else
      mapped = claimed.error();
    if (mapped) return {};
    if (mapped.error().detail != CUDA_ERROR_OUT_OF_MEMORY) return mapped;
    if (attempt == refusals_most) return short_device(granules, &block, mapped.error());
    if (++attempt == refusals_most)
      short_of_memory = short_device(granules, &block, mapped.error());
  }
}

/// Granules to reserve for mapping so many of the block's pages (whole spans), at this moment.
uint64_t EngineImpl::granules_for(const Block& block, uint64_t pages) const {
  return block.shape.shared() ? frames_.granules_for(block.shape) : pages / granule_pages;
}

/// Maps what is missing with host memory, beyond the budget.
Result<void> EngineImpl::map_host_fault(Lock& lock, Block& block, const Error& no_room) {
  std::vector<Frame> frames;
  for (const Span& span : block.spans) {
    if (span.mapped()) continue;
    Result<std::vector<Frame>> one = frames_.take_host(
        block.shape.shared() ? block.shape.granules() : span.pages / granule_pages);
    if (!one) {
      frames_.give(frames);
      if (health_.dead()) return one.error();
      return make_error(Code::out_of_memory, 0, no_room.text + "; " + one.error().text);
    }
    frames.push_back(one->front());
  }
  const uint64_t pages = block.pages - block.mapped;
  const uint32_t generation = block.generation;
  Mapping mapping = Mapper::claim(block, std::move(frames), pages);
  if (Result<void> mapped = carry_out(lock, mapping); !mapped) return mapped;
  if (block.generation == generation) count_zero_copy(pages * page_bytes, no_room);
  // (Else it was freed meanwhile.)
  return {};
}

void EngineImpl::count_zero_copy(uint64_t bytes, const Error& no_room) {
  counted_.zero_copy_bytes += bytes;
  if (counted_.zero_copy_touches++ == 0 && !options_.no_bytes)  // (firn simulate reports the sum.)
    trouble("the tensors of one operator exceed the budget: the GPU used some of them in host "
            "memory, slowly; " + no_room.text);
}

/// A block freed while its reads were in flight: no thread waits for it, but its frames are mapped
/// until the copies into them are over.
void EngineImpl::finish_drain(Block& block) {
  if (!uses_.over(block)) {
    (void)uses_.close(block);
    return;
  }
  unmap_spans(block);
  std::erase(draining_, &block);
  transit(block, Event::drained, life_flags | word::zero_copy);
  drop_descriptor(block);
}

/// Pages of the unmapped spans, from the head on, that fit what is available now and `most`.
uint64_t EngineImpl::prefetchable_pages(const Block& block, uint64_t most) const {
  uint64_t pages = 0;
  const uint64_t available = frames_.available();
  for (const Span& span : block.spans) {
    if (span.mapped() || span.coming || span.going) continue;
    const uint64_t with = pages + span.pages;
    if (with > most || granules_for(block, with) > available) break;
    pages = with;
  }
  return pages;
}

/// Is the block away, at least in part, and can it be fetched?
bool EngineImpl::may_arrive(const Block& block) const {
  const State state = block.state();
  return block.mapped + block.coming < block.pages &&
         (state == State::hosted || state == State::spilled || state == State::faulting ||
          state == State::spilling);
}

/// Begins to fetch the next of the block's spans, if there is room for it without waiting.
bool EngineImpl::prefetch_span(Block& block) {
  const uint64_t pages = prefetchable_pages(block, span_granules_ * granule_pages);
  return pages != 0 && claim_ahead(block, pages);
}

/// Starts hinted prefetches as far as there is room without waiting for it.
bool EngineImpl::run_prefetches() {
  bool any = false;
  while (!prefetches_.empty()) {
    PieceRef ref = prefetches_.front().first;
    Block& block = *ref.block;
    State state = block.state();
    if (block.generation != ref.generation ||
        (state != State::hosted && state != State::spilled && state != State::faulting) ||
        block.mapped + block.coming == block.pages) {
      prefetches_.pop_front();
      continue;
    }
    if (block.going > 0) break;  // a later pump goes on
    // As many spans as there is room for, from the head on.
    const uint64_t wanted = block.pages - block.mapped - block.coming;
    uint64_t pages = prefetchable_pages(block);
    if (pages == 0) {
      park_ready(false);
      reclaim_parked(granules_for(block, wanted));
      pages = prefetchable_pages(block);
    }
    if (pages == 0) {
      const uint64_t soon = pages_soon();
      if (soon < wanted) evict(wanted - soon, &block);
      break;  // a later pump goes on
    }
    if (pages == wanted) prefetches_.pop_front();
    if (!claim_ahead(block, pages)) break;
    any = true;
  }
  return any;
}

}  // namespace firn
