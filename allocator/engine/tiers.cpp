#include "allocator/engine/tiers.h"

#include <algorithm>

#include "allocator/engine/baseline.h"

namespace firn {

/// Pages at the block's tail that are mapped and leave without I/O: they are valid elsewhere, or
/// its recipe makes them again.
uint64_t EngineImpl::clean_pages(Block& block) const {
  uint64_t pages = 0;
  if (Movement::drops(block)) return block.mapped;
  if (block.pieces.empty()) return 0;
  for (size_t i = block.spans.size(); i-- > 0;) {
    if (!block.spans[i].mapped()) continue;
    for (const Piece& piece : pieces_of(block, block.spans[i]))
      if (!piece.elsewhere()) return pages;
    pages += block.spans[i].pages;
  }
  return pages;
}

/// Is the block away, at least in part, and can it be fetched?
bool EngineImpl::may_arrive(const Block& block) const {
  const State state = block.state();
  return block.mapped + block.coming < block.pages && !block.at_host &&
         (state == State::hosted || state == State::spilled || state == State::faulting ||
          state == State::spilling);
}

/// Begins to fetch the next of the block's spans, if there is room for it without waiting.
bool EngineImpl::prefetch_span(Block& block) {
  const uint64_t pages = prefetchable_pages(block, span_granules_ * granule_pages);
  return pages != 0 && claim_ahead(block, pages);
}

/// Blocks that are being made clean, and stay otherwise.
std::vector<Block*> EngineTiers::copied_out() const {
  std::vector<Block*> blocks;
  for (Block* block : e_.movement_.spilling())
    if (!block->leave) blocks.push_back(block);
  return blocks;
}

uint64_t EngineTiers::copied_tail(Block* block) const {
  uint64_t pages = 0;  // from the tail on, as copies are made
  for (size_t i = block->spans.size(); i-- > 0;) {
    const Span& span = block->spans[i];
    if (!span.mapped()) continue;
    const std::span<Piece> of_span = pieces_of(*block, span);
    if (!std::all_of(of_span.begin(), of_span.end(), [](const Piece& piece) {
          return piece.copying_out || piece.elsewhere();
        }))
      break;
    pages += span.pages;
  }
  return pages;
}

uint64_t EngineTiers::make_leave(Block* block, uint64_t pages) {
  uint64_t started = 0;
  (void)e_.evict_block(*block, pages, started);
  return started;
}

uint64_t Baseline::writes_from(const EngineTiers& tiers) const { return tiers.host_bytes() / 2; }

bool EngineTiers::only_stored(const Block* block, size_t i) const {
  const Piece& piece = block->pieces[i];
  if (piece.on_device || piece.host || !piece.slot_valid || piece.reading) return false;
  return e_.clock_.now_ns() >= piece.read_again_ns;  // else it failed a moment ago
}

}  // namespace firn
