// Policy::lifetime: the allocations that come next find their blocks mapped already, so that the
// driver's calls are made while the device computes and not while the program waits for an address.
#include <algorithm>

#include "allocator/engine_impl.h"

namespace firn {

/// Blocks that are ready, or will be when the program has freed them, are counted against the
/// allocations that come; what lacks is mapped, as far as there is room that nothing sooner needs.
bool EngineImpl::allocate_ahead() {
  if (births_.done_at == history_->now()) return false;
  births_.kinds.clear();
  bool any = false, enough = true;
  const uint64_t most = std::min(births_ahead, history_->period());
  for (uint64_t ahead = 1; ahead <= most && enough; ++ahead) {
    const History::Upcoming coming = history_->upcoming(ahead);
    if (coming.kind != EventKind::allocate && coming.kind != EventKind::free) continue;
    if (coming.identity >= births_.stream_of.size() || !births_.stream_of[coming.identity])
      continue;
    const unsigned stream = births_.stream_of[coming.identity] - 1u;
    Births::Kind& kind = births_kind(stream, grains_of(coming.bytes));
    if (coming.kind == EventKind::free) {
      ++kind.ready;
    } else {
      if (kind.ready > 0)
        --kind.ready;
      else
        any |= enough = make_ready_ahead(stream, coming.bytes);
      if (enough) ++kind.claimed;
    }
  }
  if (enough) births_.done_at = history_->now();
  return any;
}

EngineImpl::Births::Kind& EngineImpl::births_kind(unsigned stream, uint32_t grains) {
  for (Births::Kind& kind : births_.kinds)
    if (kind.stream == stream && kind.grains == grains) return kind;
  Births::Kind kind{stream, grains, 0, 0, 0};
  const unsigned size_class = size_class::of_grains(grains);
  if (size_class < size_class::count)
    kind.ready = ready(stream).stacks[size_class].count(table_, births_ahead);
  for (const Block* block : parked_)
    if (block->stream == stream && block->grains == grains) ++kind.ready;
  return births_.kinds.emplace_back(kind);
}

bool EngineImpl::make_ready_ahead(unsigned stream, size_t bytes) {
  Shape shape = shape_of(grains_of(bytes));
  if (!room_for_birth(frames_.granules_for(shape))) return false;
  shape = shape_of(shape.grains());  // (gaps may have come)
  Result<Block*> block =
      make_block(stream, bytes, frames_.reserve(frames_.granules_for(shape)), shape);
  if (!block) return false;
  transit(**block, Event::release);
  ++(*block)->generation;
  (*block)->age.store(tick_.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
  if ((*block)->size_class < size_class::count)
    ready(stream).push(table_, **block);
  else
    parked_.push_back(*block);
  return true;
}

/// Frames that are free, or that a block gives up which is used later and has its bytes elsewhere.
bool EngineImpl::room_for_birth(uint64_t granules) {
  if (frames_.available() >= granules) return true;
  park_ready(false);
  reclaim_parked(granules, true);
  const uint64_t wanted = granules * granule_grains;
  const uint64_t coming = frames_.available() * granule_grains + leaving_grains();
  if (coming < wanted) evict_farthest(wanted - coming, nullptr, plan_.window, true);
  finish_spills();
  return frames_.available() >= granules;
}

/// Is a coming allocation counted on this ready block? Once for each of them.
bool EngineImpl::spared(const Block& block) {
  for (Births::Kind& kind : births_.kinds)
    if (kind.stream == block.stream && kind.grains == block.grains)
      return kind.spared < kind.claimed && ++kind.spared > 0;
  return false;
}

}  // namespace firn
