// Policy::lifetime: what the program did is learned (history.h), what follows is decided from it
// (decide.h), and carried out bit by bit as room, channels and completions allow. Whatever is not
// known goes by age, and every step is one that age could take too: a wrong prediction costs time,
// never a byte.
#include <algorithm>

#include "allocator/check.h"
#include "allocator/engine_impl.h"

namespace firn {

using lifetimes::Step;

/// Feeds what happened since the last time to the history, and decides anew when enough has changed.
void EngineImpl::learn() {
  if (!ring_) return;
  EventRing::Event event;
  uint64_t lost = 0;
  while (ring_->pop(event, lost)) {
    if (event.block >= life_of_.size()) life_of_.resize(event.block + 1024);
    Life& life = life_of_[event.block];
    // A block from before the watch began, or whose allocation was lost, begins with its first use.
    if (event.kind == EventKind::allocate || (!life && event.kind != EventKind::free)) {
      if (life) history_->free(life);
      life = history_->allocate(table_[event.block].granules * granule_bytes);
      if (life >= block_of_life_.size()) block_of_life_.resize(life + 1024);
      block_of_life_[life] = event.block + 1;
    }
    if (event.kind == EventKind::free) {
      if (life) {
        history_->free(life);
        block_of_life_[life] = 0;
      }
      life = 0;
    } else if (event.kind != EventKind::allocate) {
      history_->touch(life, event.kind == EventKind::touch_write);
    }
  }
  if (!history_->known()) {
    plan_.valid = false;
    return;
  }
  // Often enough to follow, seldom enough to cost little: a decision looks at the whole period.
  const uint64_t patience = std::max<uint64_t>(history_->period() / 128, 8);
  if (!plan_.valid || plan_.period != history_->period() || history_->now() >= plan_.made + patience)
    replan();
}

/// Granules of the block that stay whatever is decided.
uint64_t EngineImpl::immovable_granules(const Block& block) const {
  uint64_t w = block.word.load(std::memory_order_relaxed);
  State state = word::state(w);
  if (state == State::ready || state == State::draining || (w & word::freed)) return 0;
  return (w & word::pinned) || !(w & word::proven) ? block.device : 0;
}

/// What comes in the period, as far as it matters to memory: scratch_.steps, for scratch_.items.
void EngineImpl::lay_out_steps() {
  auto& [blocks, items, steps, item_of, gone] = scratch_;
  steps.clear();
  gone.assign(items.size(), 0);
  const uint64_t period = history_->period();
  for (uint64_t ahead = 1; ahead <= period; ++ahead) {
    const History::Upcoming coming = history_->upcoming(ahead);
    uint32_t item = Step::none;
    if (coming.life && coming.life < block_of_life_.size() && block_of_life_[coming.life]) {
      uint32_t index = block_of_life_[coming.life] - 1;
      if (index < item_of.size() && item_of[index]) item = item_of[index] - 1;
      if (item != Step::none && gone[item]) item = Step::none;  // its successor is meant
    }
    const uint64_t size = coming.bytes / granule_bytes;
    if (coming.kind == EventKind::allocate) {
      if (item != Step::none) gone[item] = 1;
      steps.push_back({ahead, Step::Kind::birth, Step::none, size});
    } else if (coming.kind == EventKind::free) {
      steps.push_back({ahead, Step::Kind::death, item, size});
      if (item != Step::none) gone[item] = 1;
    } else if (item != Step::none) {
      steps.push_back({ahead, Step::Kind::use, item, 0});
      if (items[item].next_use == lifetimes::no_use) items[item].next_use = ahead;
    }
  }
  for (lifetimes::Item& item : items)
    item.dead = item.next_use == lifetimes::no_use && gone[&item - items.data()];
}

void EngineImpl::replan() {
  plan_.valid = false;
  if (!history_->known() || history_->period() == 0) return;
  const uint64_t now = history_->now();
  auto& [blocks, items, steps, item_of, gone] = scratch_;
  blocks.clear();
  items.clear();
  item_of.assign(table_.size(), 0);
  uint64_t immovable = static_cast<uint64_t>(reserved_tally_[0].current()) / granule_bytes;
  for (Block* block : live_) {
    uint64_t stays = immovable_granules(*block);
    immovable += stays;
    State state = block->state();
    if (stays || state == State::ready || state == State::draining || state == State::lost ||
        (block->word.load(std::memory_order_relaxed) & word::freed))
      continue;
    blocks.push_back(block);
    items.push_back({lifetimes::no_use, block->granules, block->mapped, false});
    item_of[block->index] = static_cast<uint32_t>(items.size());
  }
  lay_out_steps();
  const uint64_t budget = frames_.budget_granules();
  const lifetimes::Decision decision =
      lifetimes::decide({budget - std::min(budget, immovable), items, steps});
  const auto entry = [&](uint32_t i) {
    const uint64_t next = items[i].next_use;
    return Plan::Entry{blocks[i], blocks[i]->generation,
                       next == lifetimes::no_use ? next : now + next,
                       blocks[i]->age.load(std::memory_order_relaxed)};
  };
  plan_.fetch.clear();
  plan_.farthest.clear();
  for (uint32_t i : decision.fetch) plan_.fetch.push_back(entry(i));
  for (uint32_t i : decision.farthest) plan_.farthest.push_back(entry(i));
  plan_.valid = true;
  plan_.pressure = decision.pressure;
  plan_.window = now + decision.window;
  plan_.made = now;
  plan_.period = history_->period();
  plan_.cleaned = 0;
}

/// One round of doing what was decided. True when something was begun.
bool EngineImpl::carry_out() {
  bool any = fetch_ahead();
  if (plan_.pressure && !stuck_) any |= clean_farthest();
  return any;
}

bool EngineImpl::meant(const Plan::Entry& entry) const {
  return entry.block->generation == entry.generation &&
         entry.block->age.load(std::memory_order_relaxed) == entry.age;
}

/// Granules at the block's tail that are mapped and valid elsewhere: they leave without I/O.
uint64_t EngineImpl::clean_granules(Block& block) const {
  uint64_t granules = 0;
  if (block.pieces.empty()) return 0;
  for (size_t i = block.spans.size(); i-- > 0;) {
    if (!block.spans[i].mapped()) continue;
    for (const Piece& piece : pieces_of(block, block.spans[i]))
      if (!piece.host_valid && !piece.slot_valid) return granules;
    granules += block.spans[i].granules;
  }
  return granules;
}

/// Has blocks leave that are used after `beyond`, the farthest first.
uint64_t EngineImpl::evict_farthest(uint64_t granules, const Block* except, uint64_t beyond,
                                    bool clean_only) {
  uint64_t started = 0;
  for (const Plan::Entry& entry : plan_.farthest) {
    if (started >= granules || entry.next_use <= beyond) break;
    Block& block = *entry.block;
    if (&block == except || !meant(entry) ||
        !AgeOrder::may_leave(block, block.word.load(std::memory_order_acquire)))
      continue;
    uint64_t wanted = granules - started;
    if (clean_only) wanted = std::min(wanted, clean_granules(block));
    if (wanted == 0 || (clean_only && !uses_over(block))) continue;
    if (!start_spill(block, true, wanted)) continue;
    started += leaving_granules(block);
    ++counted_.evictions;
  }
  return started;
}

/// Brings back what is used next, as long as the window has room for it and what leaves for it is
/// clean. Few pieces at a time: what is wanted at once must not queue behind them.
bool EngineImpl::fetch_ahead() {
  bool any = false;
  while (!plan_.fetch.empty()) {
    Plan::Entry& entry = plan_.fetch.front();
    Block& block = *entry.block;
    State state = block.state();
    if (!meant(entry) || block.mapped == block.granules ||
        (state != State::hosted && state != State::spilled && state != State::faulting &&
         state != State::spilling)) {
      plan_.fetch.pop_front();
      continue;
    }
    uint64_t arriving = 0;
    for (const Block* other : faulting_)
      for (const Piece& piece : other->pieces)
        if (!piece.on_device && other->span_of(piece).mapped()) arriving += piece.bytes;
    for (const CopyInFlight& copy : copies_in_) arriving += copy.staging->bytes;
    if (arriving >= 4 * options_.span_bytes) break;
    if (state == State::spilling) keep(block);
    uint64_t granules = prefetchable_granules(block);
    const uint64_t span = options_.span_bytes / granule_bytes;
    if (granules < std::min<uint64_t>(span, block.granules - block.mapped)) {
      park_ready(false);
      reclaim_parked(span);
      granules = prefetchable_granules(block);
    }
    if (granules == 0) {
      uint64_t coming = frames_.available() + leaving_granules();
      if (coming < span) evict_farthest(span - coming, &block, entry.next_use, true);
      for (size_t i = 0; i < spilling_.size();) {
        Block* leaving = spilling_[i];
        finish_spill(*leaving);
        if (i < spilling_.size() && spilling_[i] == leaving) ++i;
      }
      granules = prefetchable_granules(block);
    }
    granules = std::min(granules, span);
    if (granules == 0) break;
    uint64_t whole = 0;  // spans, not parts of them
    for (const Span& part : block.spans) {
      if (part.mapped()) continue;
      if (whole + part.granules > granules) break;
      whole += part.granules;
    }
    if (whole == 0 || !map_fault(block, frames_.reserve(whole), true)) break;
    entry.age = block.age.load(std::memory_order_relaxed);
    advance_fault(block);
    any = true;
  }
  return any;
}

/// Makes what is used last valid elsewhere while the way out is idle, so that it can leave later
/// without I/O.
bool EngineImpl::clean_farthest() {
  bool any = false;
  while (plan_.cleaned < plan_.farthest.size()) {
    uint64_t leaving = 0;
    for (const CopyInFlight& copy : copies_out_) leaving += copy.staging->bytes;
    if (leaving >= 2 * options_.span_bytes || staging_wanted_) break;
    const Plan::Entry& entry = plan_.farthest[plan_.cleaned];
    Block& block = *entry.block;
    uint64_t w = block.word.load(std::memory_order_acquire);
    if (!meant(entry) || !AgeOrder::may_leave(block, w) ||
        clean_granules(block) == block.mapped) {
      if (block.state() == State::spilling && meant(entry)) break;  // on its way already
      ++plan_.cleaned;
      continue;
    }
    if (!uses_over(block)) {
      close_uses(block);
      break;
    }
    if (!start_spill(block, false, 4 * options_.span_bytes / granule_bytes)) {
      ++plan_.cleaned;
      continue;
    }
    any = true;
  }
  return any;
}

}  // namespace firn
