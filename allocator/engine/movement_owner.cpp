// The engine as the owner of Movement: what it is told of blocks under way, and what it is asked.
#include "allocator/engine/baseline.h"
#include "allocator/engine/hot.h"
#include "allocator/engine/tiers.h"

namespace firn {

void EngineImpl::work_begins() { busy_.store(true, std::memory_order_relaxed); }

void EngineImpl::leaves(Block& block) {
  if (!learner_) return;
  planner_.note_leaving(*learner_, block);
  reverse_.left(block);
}

void EngineImpl::dropped(const Block& block) {
  if (learner_) learner_->note_dropped(block, recipes_.of(block)->inputs);
}

void EngineImpl::make_young(Block& block) {
  block.age.store(next_tick(), std::memory_order_relaxed);
}

/// Recipes that read it end, of a segment those of each small block. (Blocks that are away have no
/// other way back: their next use finds that they are lost too.)
void EngineImpl::lost(Block& block) {
  if (block.segment == 0) return end_readers(block);
  SmallBlocks::each(segment_of(block), table_, [&](const Block& small) FIRN_HELD {
    end_readers(small);
    return true;
  });
}

bool EngineImpl::came_out(const PieceRef& ref) {
  plan_.write_looked = false;
  return options_.baseline && options_.baseline->came_out(ref);
}

std::optional<uint64_t> EngineImpl::window() const {
  return plan_.valid ? std::optional(plan_.window) : std::nullopt;
}

/// By the plan; without one, in the order of arrival, from half of host memory on.
std::optional<PieceRef> EngineImpl::next_write() {
  if (options_.baseline)
    while (const std::optional<PieceRef> next = options_.baseline->next_write())
      if (HostCopies::is_unwritten(*next)) return next;
  if (plan_.valid) {
    const auto next = EngineTiers::carry_out(*this).next_write();
    if (!next) return std::nullopt;
    return piece_ref(*next->block, static_cast<uint32_t>(next->piece));
  }
  const uint64_t stays = options_.baseline
                             ? options_.baseline->writes_from(EngineTiers(*this))
                             : host_.budget() / 2;
  if (!movement_.staging_wanted() && !host_.closing() && host_.used() <= stays)
    return std::nullopt;
  return movement_.host_copies().next_by_arrival();
}

std::vector<PieceRef> EngineImpl::give_up_writes() {
  return options_.baseline ? options_.baseline->give_up_writes() : std::vector<PieceRef>();
}

bool EngineImpl::leaves_host(const Block& block) const {
  return options_.baseline && options_.baseline->leaves_host(block);
}

std::string EngineImpl::last_events(const Block& block) const {
  return net_ ? net_->events_words(block, clock_.now_ns()) : std::string();
}

}  // namespace firn
