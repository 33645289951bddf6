// Policy::lifetime: the allocations that come next find their blocks mapped already, so that the
// driver's calls are made while the device computes and not while the program waits for an address.
#include <algorithm>

#include "allocator/engine/hot.h"
#include "allocator/engine/tiers.h"

namespace firn {

/// Counts blocks that are ready, or will be when the program frees them, against the coming
/// allocations; maps the missing ones, as far as there is room that nothing sooner needs.
bool EngineImpl::allocate_ahead() {
  if (births_.done_at == learner_->history().now()) return false;
  births_.kinds.clear();
  bool any = false, enough = true;
  const uint64_t most = std::min(births_ahead, learner_->history().period());
  for (uint64_t ahead = 1; ahead <= most && enough; ++ahead) {
    const History::Upcoming coming = learner_->history().upcoming(ahead);
    if (coming.kind != EventKind::allocate && coming.kind != EventKind::free) continue;
    const std::optional<unsigned> stream = learner_->stream_of(coming.identity);
    if (!stream || placed_.place_of(coming.identity, coming.bytes)) continue;
    Births::Kind& kind = births_kind(*stream, pages_of(coming.bytes));
    if (coming.kind == EventKind::free) {
      ++kind.ready;
    } else {
      if (kind.ready > 0)
        --kind.ready;
      else
        any |= enough = make_ready_ahead(*stream, coming.bytes);
      if (enough) ++kind.claimed;
    }
  }
  if (enough) births_.done_at = learner_->history().now();
  return any;
}

Births::Kind& EngineImpl::births_kind(unsigned stream, uint32_t pages) {
  for (Births::Kind& kind : births_.kinds)
    if (kind.stream == stream && kind.pages == pages) return kind;
  Births::Kind kind{stream, pages, 0, 0, 0};
  const unsigned size_class = size_class::of_pages(pages);
  if (size_class < size_class::count)
    kind.ready = ready(stream).count(table_, size_class, births_ahead);
  for (const Block* block : parked_)
    if (block->stream == stream && block->pages == pages && block->segment == 0) ++kind.ready;
  return births_.kinds.emplace_back(kind);
}

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
  finish_spills();
  return frames_.available() >= granules;
}

/// For each kind, when the program will have used up one, two, ... of its ready blocks if no memory
/// changes its kind: as far as the coming period tells.
void EngineImpl::foresee_wants() {
  births_.wants.clear();
  births_.wants_made = learner_->history().now();
  const uint64_t period = learner_->history().period();
  for (uint64_t ahead = 1; ahead <= period; ++ahead) {
    const History::Upcoming coming = learner_->history().upcoming(ahead);
    if (coming.kind != EventKind::allocate && coming.kind != EventKind::free) continue;
    const std::optional<unsigned> stream = learner_->stream_of(coming.identity);
    if (!stream || placed_.place_of(coming.identity, coming.bytes)) continue;
    Births::Wants& wants = births_.wants[{*stream, pages_of(coming.bytes)}];
    if (coming.kind == EventKind::free) {
      --wants.balance;
    } else if (++wants.balance > static_cast<int64_t>(wants.at.size())) {
      wants.at.push_back(learner_->history().now() + ahead);
    }
  }
}

/// Sorts parked blocks by the order of reclaiming, from the back: those wanted last, as far as that
/// is known (this order makes the fewest changes of kind), then those freed first.
void EngineImpl::order_parked() {
  std::sort(parked_.begin(), parked_.end(), [](const Block* a, const Block* b) {
    return a->age.load(std::memory_order_relaxed) > b->age.load(std::memory_order_relaxed);
  });
  if (!learner_ || !learner_->history().known() || learner_->history().period() == 0) return;
  if (learner_->history().now() < births_.wants_made ||
      learner_->history().now() - births_.wants_made > learner_->history().period() / wants_part)
    foresee_wants();
  for (auto& [kind, wants] : births_.wants) wants.ready = 0;
  for (Block* block : parked_) {  // the youngest first: those are handed out first
    const auto wants = births_.wants.find({block->stream, block->pages});
    block->next_use = lifetimes::no_use;
    if (wants == births_.wants.end() || block->segment != 0) continue;
    const uint32_t before_it = wants->second.ready++;
    if (before_it < wants->second.at.size()) block->next_use = wants->second.at[before_it];
  }
  std::stable_sort(parked_.begin(), parked_.end(), [](const Block* a, const Block* b) {
    return a->next_use < b->next_use;
  });
}

/// Does a coming allocation count on this ready block? Once for each allocation.
bool EngineImpl::spared(const Block& block) {
  for (Births::Kind& kind : births_.kinds)
    if (kind.stream == block.stream && kind.pages == block.pages)
      return kind.spared < kind.claimed && ++kind.spared > 0;
  return false;
}

}  // namespace firn
