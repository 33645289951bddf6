// Policy::lifetime: learns what the program did (history.h), decides from it what follows
// (decide.h), and carries that out bit by bit as room, channels and completions allow. Whatever is
// not known goes by age, and every step is one that age could take too: a wrong prediction costs
// time, never a byte.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "allocator/base/check.h"
#include "allocator/base/cpu_timer.h"
#include "allocator/engine/engine_impl.h"
#include "firn/slow_work.h"

namespace firn {

using lifetimes::Step;

/// Feeds the events since the last time to the history. False: there were none.
bool EngineImpl::take_events() {
  // Events pushed meanwhile are for the next time: a reader close behind a thread that pushes would
  // take the cache line from it again and again.
  const uint64_t end = ring_->pushed();
  EventRing::Event event;
  if (!ring_->pop(event, end)) return false;
  CpuTimer timer(counted_.plan_ns);
  do feed(event);
  while (ring_->pop(event, end));
  return true;
}

/// Marks the device's time behind the program's work so far, if enough happened since the last
/// mark. Only while a decision uses it: marks are events on the program's stream, and are polled.
void EngineImpl::mark_device_time(uint64_t events_least) {
  if (options_.policy != Policy::greedy && !choice_.timing) return;
  const int stream = program_stream_.load(std::memory_order_relaxed);
  if (stream >= 0 && history_->now() >= device_clock_.last_position() + events_least)
    device_clock_.mark(static_cast<unsigned>(stream), history_->now());
}

/// Learns what happened, and decides anew when enough has changed.
void EngineImpl::learn() {
  if (!ring_ || (!take_events() && history_->now() == learned_)) return;
  learned_ = history_->now();
  mark_device_time(stamp_events);
  if (options_.policy == Policy::greedy) {
    CpuTimer timer(counted_.plan_ns);
    learn_greedy();
    return;
  }
  if (history_->known()) {
    const uint64_t gaps = frames_.shared().free_pages();
    const uint64_t granules = frames_.held_granules() - frames_.free_granules();
    fullest_.note(learned_, history_->period(), granules * granule_pages - gaps, gaps);
  }
  // Often enough to follow, seldom enough to cost little: a decision considers the whole period. A
  // plan that is wholly carried out leaves a channel idle, and is made anew sooner.
  const bool spent =
      plan_.excess > 0 && (plan_.cleaned == plan_.leaving.size() || plan_.fetch.empty());
  const uint64_t period = history_->period();
  const uint64_t patience = spent ? 1 : std::max<uint64_t>(period / 128, 8);
  if (!history_->known())
    plan_.valid = false;
  else if (!plan_.valid || plan_.period != period ||
           (history_->now() >= plan_.made + patience &&
            clock_.now_ns() >= plan_.made_ns + period * decision_pause_ns))
    replan();
  consider_choice();
  consider_places();
}

void EngineImpl::feed(const EventRing::Event& event) {
  if (event.block >= life_of_.size()) life_of_.resize(event.block + 1024);
  Life& life = life_of_[event.block];
  // A block from before the watch began, or whose allocation was lost, begins with its first use.
  if (event.kind == EventKind::allocate || (!life && event.kind != EventKind::free)) {
    if (life) history_->free(life);
    life = history_->allocate(table_[event.block].pages * page_bytes);
    const Identity identity = history_->identity(life);
    if (identity >= births_.stream_of.size()) births_.stream_of.resize(identity + 1024);
    births_.stream_of[identity] = static_cast<uint16_t>(table_[event.block].stream + 1);
    if (placing_.bytes_of.size() >= sizes_known_most) placing_.bytes_of.clear();
    if (options_.places)
      placing_.bytes_of[{identity, table_[event.block].pages * page_bytes}] =
          table_[event.block].asked.load(std::memory_order_relaxed) * uint64_t{unit_bytes};
    note_allocation(identity, table_[event.block]);
    if (life >= block_of_.size()) block_of_.resize(life + 1024);
    block_of_[life] = event.block;
  }
  if (event.kind == EventKind::free) {
    if (life) history_->free(life);
    life = 0;
  } else if (event.kind != EventKind::allocate) {
    history_->touch(life, event.kind == EventKind::touch_write);
  }
  const uint64_t ahead = life && history_->known() ? history_->next_event(life) : History::never;
  table_[event.block].next_use =
      ahead == History::never ? lifetimes::no_use : history_->now() + ahead;
}

void EngineImpl::foresee(std::span<const Coming> coming) {
  if (!history_) return;
  Lock lock(mutex_);
  learn();
  std::vector<History::Planned> plan;
  plan.reserve(coming.size());
  for (const Coming& event : coming) {
    uint32_t block = History::plan_block + event.number;
    if (event.pointer) {
      const Block* live = live_at(event.pointer, false);
      block = live && live->index < life_of_.size() ? life_of_[live->index] : 0;
      if (!block) continue;  // small, or never touched
    }
    plan.push_back({event.kind, block, pages_of(event.bytes) * page_bytes});
  }
  history_->preload(plan);
  replan();
}

/// Pages of the block that stay whatever is decided.
uint64_t EngineImpl::immovable_pages(const Block& block) const {
  uint64_t w = block.word.load(std::memory_order_relaxed);
  State state = word::state(w);
  if (state == State::ready || state == State::draining || (w & word::freed)) return 0;
  return (w & word::pinned) || !(w & word::proven) ? block.device : 0;
}

/// Pages of the budget for what may move.
uint64_t EngineImpl::movable_capacity() const {
  // If all of it fits, gaps count as they are at the fullest moment. Else the device is full at
  // every moment, and that moment would be the one with the fewest gaps.
  uint64_t gaps = frames_.shared().free_pages();
  if (plan_.excess == 0) gaps = fullest_.gaps(gaps);
  uint64_t immovable = static_cast<uint64_t>(reserved_tally_[0].current()) / page_bytes + gaps;
  for (const Block* block : live_) {
    immovable += immovable_pages(*block);
    if (block->segment != 0) immovable -= block->pages - block->device;  // it is away
  }
  const uint64_t budget = frames_.budget_granules() * granule_pages;
  return budget - std::min(budget, immovable);
}

/// Pages that a coming allocation will take.
uint64_t EngineImpl::pages_to_come(const History::Upcoming& coming) {
  const Placing::Place* place = place_of(coming.identity, coming.bytes);
  return place ? (place->bytes + page_bytes - 1) / page_bytes : coming.bytes / page_bytes;
}

/// Lays out in scratch_ what is there and what comes in the period, as far as it matters to memory.
void EngineImpl::lay_out_period() {
  auto& [blocks, items, steps, item_of, first_of] = scratch_;
  const uint64_t period = history_->period();
  blocks.clear();
  items.clear();
  steps.clear();
  std::fill(item_of.begin(), item_of.end(), 0);
  std::fill(first_of.begin(), first_of.end(), 0);
  const auto grow = [&](Identity identity) {
    if (identity < item_of.size()) return;
    item_of.resize(identity + 1024);
    first_of.resize(identity + 1024);
  };
  for (Block* block : live_) {
    const uint64_t w = block->word.load(std::memory_order_relaxed);
    const State state = word::state(w);
    if (block->segment != 0 || immovable_pages(*block) || state == State::ready ||
        state == State::draining || state == State::lost || state == State::free ||
        (w & word::freed))
      continue;
    lifetimes::Item item{.size = block->pages, .on_device = block->mapped,
                         .clean = clean_pages(*block)};
    const Life life = block->index < life_of_.size() ? life_of_[block->index] : 0;
    if (!life || !history_->foreseen(life)) item.assumed = period / 2;  // nothing is known
    blocks.push_back(block);
    items.push_back(item);
    if (!life) continue;
    const Identity identity = history_->identity(life);
    grow(identity);
    item_of[identity] = first_of[identity] = static_cast<uint32_t>(items.size());
  }
  for (const auto& region : region_owner_)
    for (const auto& [address, block] : region->used()) {
      const Life life = block->index < life_of_.size() ? life_of_[block->index] : 0;
      if (block->state() != State::resident || !life) continue;
      const uint64_t size = (block->place_bytes + page_bytes - 1) / page_bytes;
      blocks.push_back(block);
      items.push_back({.size = size, .on_device = size});
      const Identity identity = history_->identity(life);
      grow(identity);
      item_of[identity] = first_of[identity] = static_cast<uint32_t>(items.size());
    }
  for (uint64_t ahead = 1; ahead <= period; ++ahead) {
    const History::Upcoming coming = history_->upcoming(ahead);
    grow(coming.identity);
    if (coming.kind == EventKind::allocate) {
      // A block that still has this identity goes on as another, and is freed as that.
      uint32_t older = std::exchange(item_of[coming.identity], 0);
      for (Identity at = coming.identity; older && (at = history_->marker(at));) {
        grow(at);
        std::swap(older, item_of[at]);
      }
    }
    uint32_t& item = item_of[coming.identity];
    if (coming.kind == EventKind::allocate) {
      items.push_back({.size = pages_to_come(coming), .born = true});
      item = static_cast<uint32_t>(items.size());
      if (!first_of[coming.identity]) first_of[coming.identity] = item;
      steps.push_back({ahead, Step::Kind::birth, item - 1});
    } else if (item) {
      steps.push_back({ahead,
                       coming.kind == EventKind::free          ? Step::Kind::death
                       : coming.kind == EventKind::touch_write ? Step::Kind::write
                                                               : Step::Kind::read,
                       item - 1});
      if (coming.kind == EventKind::free) item = 0;
    }
  }
  for (size_t identity = 0; identity < item_of.size(); ++identity)
    if (item_of[identity]) items[item_of[identity] - 1].again = first_of[identity] - 1;
}

Plan::Entry EngineImpl::plan_entry(const lifetimes::Decision& decision, uint32_t item,
                                   uint64_t pages) const {
  const uint64_t next = decision.next_use[item];
  Block* block = scratch_.blocks[item];
  return {block, block->generation, pages,
          next == lifetimes::no_use ? next : history_->now() + next,
          block->age.load(std::memory_order_relaxed)};
}

void EngineImpl::replan() {
  CpuTimer timer(counted_.plan_ns);
  plan_.valid = false;
  if (!history_->known() || history_->period() == 0) return;
  SlowWork work(SlowWorks::Kind::plan, [this] {
    return fmt::format("deciding what leaves device {} and what comes back, in an iteration of {} "
                       "allocations, uses and frees (firn_policy:age does without),",
                       options_.device, history_->period());
  }, options_.slow_works ? *options_.slow_works : SlowWorks::of_process());
  const uint64_t now = history_->now(), capacity = movable_capacity();
  lay_out_period();
  const auto& blocks = scratch_.blocks;
  const auto spare = static_cast<uint64_t>(static_cast<double>(capacity) * spare_fraction_);
  const lifetimes::Decision decision = lifetimes::decide(
      {capacity, spare, history_->period(), scratch_.items, scratch_.steps, false});
  const auto entry = [&](uint32_t i, uint64_t pages = 0) {
    return plan_entry(decision, i, pages);
  };
  const auto event = [&](uint64_t ahead) {
    return ahead == lifetimes::no_use ? ahead : now + ahead;
  };
  for (size_t i = 0; i < blocks.size(); ++i) {
    blocks[i]->next_use = event(decision.next_use[i]);
    blocks[i]->next_change = event(decision.next_change[i]);
  }
  plan_.fetch.clear();
  plan_.farthest.clear();
  plan_.leaving.clear();
  for (uint32_t i : decision.fetch) plan_.fetch.push_back(entry(i, blocks[i]->pages));
  // A part is no use to the kernel yet: worth its room only if much less is left to come then.
  if (!plan_.fetch.empty()) {
    Plan::Entry& last = plan_.fetch.back();
    const uint64_t there = last.block->mapped;
    last.pages = decision.last_pages;
    if (last.pages < last.block->pages &&
        last.pages < there + in_flight_most() / page_bytes)
      plan_.fetch.pop_back();
  }
  for (uint32_t i : decision.farthest) plan_.farthest.push_back(entry(i));
  for (auto [i, pages, spare] : decision.leaving) {
    plan_.leaving.push_back(entry(i, pages));
    plan_.leaving.back().spare = spare;
  }
  plan_.valid = true;
  plan_.window = plan_.memory_window = now + decision.window;
  plan_.excess = decision.peak > capacity ? decision.peak - capacity : 0;
  plan_.made = now;
  plan_.made_ns = clock_.now_ns();
  plan_.period = history_->period();
  plan_.cleaned = plan_.read = plan_.written = 0;
  plan_.write_looked = false;
  plan_.reads.clear();
  plan_.writes.clear();
  if (store_) replan_host(capacity, spare);
  if (now >= reading_since_ + plan_.period) {
    reading_.period_over();
    reading_since_ = now;
  }
}

/// One round of doing what was decided. True when something was begun.
bool EngineImpl::carry_out() {
  // (Memory that comes free while threads wait for room is theirs, not the next allocation's.)
  bool any = waiting_ == 0 && allocate_ahead();
  any |= fetch_ahead();
  if (!stuck_) any |= clean_ahead_of_leaving();
  if (store_ && !host_is_passage()) any |= read_ahead();
  return any;
}

bool EngineImpl::meant(const Plan::Entry& entry) const {
  return entry.block->generation == entry.generation &&
         entry.block->age.load(std::memory_order_relaxed) == entry.age;
}

/// Pages at the block's tail that are mapped and valid elsewhere: they leave without I/O.
uint64_t EngineImpl::clean_pages(Block& block) const {
  uint64_t pages = 0;
  if (block.pieces.empty()) return 0;
  for (size_t i = block.spans.size(); i-- > 0;) {
    if (!block.spans[i].mapped()) continue;
    for (const Piece& piece : pieces_of(block, block.spans[i]))
      if (!piece.elsewhere()) return pages;
    pages += block.spans[i].pages;
  }
  return pages;
}

/// Evicts blocks that are used after `beyond`, the farthest first.
uint64_t EngineImpl::evict_farthest(uint64_t pages, const Block* except, uint64_t beyond,
                                    bool clean_only) {
  uint64_t started = 0;
  for (const Plan::Entry& entry : plan_.farthest) {
    if (started >= pages || entry.next_use <= beyond) break;
    Block& block = *entry.block;
    if (&block == except || !meant(entry) ||
        !AgeOrder::may_leave(block, block.word.load()))
      continue;
    uint64_t wanted = pages - started;
    if (clean_only) wanted = std::min(wanted, clean_pages(block));
    if (wanted == 0 || (clean_only && !uses_.over(block)) || uses_.aside(block)) continue;
    if (!start_spill(block, true, wanted)) continue;
    started += leaving_pages(block);
    ++counted_.evictions;
  }
  return started;
}

/// Evicts blocks that are being copied out ahead, as far as they are, and are used after `beyond`:
/// they are free the soonest.
uint64_t EngineImpl::evict_going(uint64_t pages, const Block* except, uint64_t beyond) {
  uint64_t started = 0;
  for (Block* block : std::vector<Block*>(spilling_)) {
    if (started >= pages) break;
    if (block == except || block->leave || block->next_use <= beyond || uses_.aside(*block))
      continue;
    uint64_t going = 0;  // from the tail on, as copies are made
    for (size_t i = block->spans.size(); i-- > 0;) {
      const Span& span = block->spans[i];
      if (!span.mapped()) continue;
      const std::span<Piece> pieces = pieces_of(*block, span);
      if (!std::all_of(pieces.begin(), pieces.end(), [](const Piece& piece) {
            return piece.copying_out || piece.elsewhere();
          }))
        break;
      going += span.pages;
    }
    if (going == 0 || !start_spill(*block, true, std::min(going, pages - started))) continue;
    started += leaving_pages(*block);
    ++counted_.evictions;
  }
  return started;
}

/// Blocks used after this event leave for the entry. Each such swap costs a read later: when SSDs
/// have little time left, an early swap takes it from reads that are needed.
uint64_t EngineImpl::give_way_after(const Plan::Entry& entry) const {
  if (reading_.part() < reading_most || !host_is_passage()) return entry.next_use;
  const uint64_t now = history_->now(), period = history_->period();
  if (entry.next_use <= now + period / swap_part) return entry.next_use;
  return std::max(entry.next_use, now + period);
}

/// Brings back what is used next, as long as the window has room for it and only clean blocks leave
/// for it. Few pieces at a time: urgent ones must not queue behind them.
bool EngineImpl::fetch_ahead() {
  bool any = false;
  while (!plan_.fetch.empty()) {
    Plan::Entry& entry = plan_.fetch.front();
    Block& block = *entry.block;
    const uint64_t span = span_granules_ * granule_pages;
    const uint64_t there = block.mapped + block.coming;
    const uint64_t next = std::min<uint64_t>(span, block.pages - there);
    if (!meant(entry) || !may_arrive(block) || there + next > entry.pages) {
      plan_.fetch.pop_front();
      continue;
    }
    if (arriving_bytes() >= in_flight_most()) break;
    if (block.state() == State::spilling) keep(block);
    if (prefetchable_pages(block) < next) {
      park_ready(false);
      reclaim_parked(span_granules_, true);
    }
    if (prefetchable_pages(block) == 0) {
      const uint64_t soon = pages_soon();
      if (soon < span) evict_farthest(span - soon, &block, give_way_after(entry), true);
      finish_spills();
    }
    if (!prefetch_span(block)) break;
    entry.age = block.age.load(std::memory_order_relaxed);
    any = true;
  }
  return any;
}

/// Copies out blocks that will leave, in that order, while the way out is idle: then they leave
/// without I/O. Blocks in use are skipped: their kernels may wait for other inputs for long.
bool EngineImpl::clean_ahead_of_leaving() {
  bool any = false;
  size_t in_use = 0;  // entries between plan_.cleaned and the one considered
  const auto next = [&] { return plan_.cleaned + in_use; };
  while (next() < plan_.leaving.size()) {
    const uint64_t on_the_way = transfers_.bytes_out();
    if (on_the_way >= in_flight_most() / 2 || !room_to_clean()) break;
    const Plan::Entry& entry = plan_.leaving[next()];
    if (entry.spare && store_ && host_is_passage() &&
        on_the_way + transfers_.writing_bytes() + host_copies_.unwritten() * options_.piece_bytes >=
            2 * options_.span_bytes)
      break;
    Block& block = *entry.block;
    if (block.state() == State::spilling && meant(entry)) {  // on its way already
      if (++in_use > in_use_most) break;
      continue;
    }
    const auto pass_over = [&] { in_use > 0 ? ++in_use : ++plan_.cleaned; };
    const uint64_t clean = clean_pages(block), covered = clean + block.pages - block.mapped;
    if (!meant(entry) || clean == block.mapped || covered >= entry.pages ||
        !AgeOrder::may_leave(block, block.word.load())) {
      pass_over();
      continue;
    }
    if (!uses_.over(block)) {
      (void)uses_.close(block);
      if (++in_use > in_use_most) break;
      continue;
    }
    const uint64_t wanted =
        std::min(entry.pages - covered, 4 * options_.span_bytes / page_bytes);
    if (start_spill(block, false, wanted))
      any = true;
    else
      pass_over();
  }
  return any;
}

}  // namespace firn
