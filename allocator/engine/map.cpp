// Around movement/mapper.h, which maps and unmaps: claims of blocks that are away, or new, are
// carried out and end in an arrival or a birth; descriptors whose end waited for a call are
// dropped.
#include <utility>

#include "allocator/engine/hot.h"

namespace firn {

/// Claims unmapped spans ahead of need, from span `first` on, where there is room:
/// carry_out_mappings() maps them.
bool EngineImpl::claim_ahead(Block& block, uint64_t pages, uint32_t first) {
  if (block.at_host || !mapper_.may_map_ahead()) return false;
  Result<Mapping> mapping =
      mapper_.claim(block, pages, frames_.reserve(granules_for(block, pages)), first);
  if (!mapping) return false;
  mapping->prefetched = true;
  mapper_.add(std::move(*mapping));
  return true;
}

/// Maps what was claimed of a block that is away, and begins to bring its bytes; or gives the
/// frames back, if the block was freed meanwhile.
Result<void> EngineImpl::carry_out(Lock& lock, Mapping& mapping) {
  Block& block = *mapping.block;
  const auto wanted = [&]() FIRN_HELD {
    if (block.generation != mapping.generation) return false;
    if (block.state() == State::spilling) movement_.keep(block);
    const State state = block.state();
    return state == State::hosted || state == State::spilled || state == State::faulting ||
           state == State::dropped;
  };
  Result<void> mapped;
  if (wanted()) {
    mapped = mapper_.map_apart(lock, mapping);
    if (mapped && wanted()) {
      Mapper::install(mapping);
      if (block.state() == State::dropped)
        transit(block, Event::fault);  // (By the thread that goes on in make_again().)
      else
        movement_.arrive(block, mapping.prefetched);
    } else if (mapped) {
      mapper_.undo(mapping);
    }
  } else {
    mapper_.drop(mapping);
  }
  end_dropped(block);
  return mapped;
}

/// Maps what was claimed so far, without the lock meanwhile. False: nothing was mapped.
bool EngineImpl::carry_out_mappings(Lock& lock) {
  bool any = false;
  while (std::optional<Mapping> mapping = mapper_.next()) {
    bool fine = true;
    if (!mapping->birth) {
      fine = static_cast<bool>(carry_out(lock, *mapping));
    } else {
      const uint64_t pages = mapping->block->pages;
      births_apart_ += pages;
      const Result<Block*> block = finish_block(lock, *mapping);
      births_apart_ -= pages;
      fine = static_cast<bool>(block);
      if (fine) make_ready_now(**block);
    }
    if (!fine) mapper_.refused();
    any |= fine;
  }
  return any;
}

/// Gives up blocks that no allocation has asked for yet: memory is short.
void EngineImpl::drop_births() {
  while (Block* block = mapper_.drop_birth()) forget_block(*block);
}

/// Gives up all mapped spans.
void EngineImpl::unmap_spans(Block& block) {
  if (mapper_.give_up(block)) work_begins();
}

/// Unmaps spans that were given up, the oldest first, until so many granules are available. False:
/// nothing was due.
bool EngineImpl::carry_out_unmappings(Lock& lock, uint64_t granules) {
  bool any = false;
  while (Block* block = mapper_.unmap_next(lock, granules)) {
    end_dropped(*block);
    any = true;
  }
  return any;
}

/// The same for one block, whose spans are wanted again. False: other threads have them in hand.
bool EngineImpl::carry_out_unmappings(Lock& lock, const Block& wanted) {
  bool any = false;
  while (Block* block = mapper_.unmap_next(lock, wanted)) {
    end_dropped(*block);
    any = true;
  }
  return any;
}

/// Drops the descriptor, if that has waited for calls under way.
void EngineImpl::end_dropped(Block& block) {
  if (block.coming == 0 && block.going == 0 && std::exchange(block.dropped, false))
    drop_descriptor(block);
}

/// Pages available once everything on its way out has left.
uint64_t EngineImpl::pages_soon() const {
  return (frames_.available() + mapper_.going_granules()) * granule_pages +
         movement_.leaving_pages();
}

}  // namespace firn
