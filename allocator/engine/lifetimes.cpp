// Policy::lifetime: learns what the program did (history.h), decides from it what follows
// (decide.h), and carries that out bit by bit as room, channels and completions allow. Whatever is
// not known goes by age, and every step is one that age could take too: a wrong prediction costs
// time, never a byte.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "allocator/base/cpu_timer.h"
#include "allocator/engine/baseline.h"
#include "allocator/engine/tiers.h"
#include "firn/check.h"
#include "firn/slow_work.h"

namespace firn {

/// Feeds the events since the last time to the history. False: there were none.
bool EngineImpl::take_events() {
  const auto begun = [this](Identity identity, const Block& block) FIRN_HELD {
    if (placed_.missed(identity, block)) planner_.note_missed();
  };
  return learner_->take_events(counted_.plan_ns, begun);
}

/// Learns what happened, and decides anew when enough has changed; releases the lock meanwhile.
void EngineImpl::learn(Lock& lock) {
  if (!learner_) return;
  const bool any = take_events(), happened = learner_->moved_on() || any;
  if (happened) learner_->mark_time(program_stream_.load(std::memory_order_relaxed), stamp_events);
  Baseline::Then then = Baseline::Then::as_usual;
  if (options_.baseline) {
    CpuTimer timer(counted_.plan_ns);
    EngineTiers tiers(*this);
    then = options_.baseline->learn(tiers, happened);
  }
  const bool idle_behind_host = !happened && host_use_over_ && plan_.valid;
  if (then == Baseline::Then::decided ||
      (!happened && !idle_behind_host && then == Baseline::Then::as_usual))
    return;
  const History& history = learner_->history();
  if (history.known()) {
    const uint64_t gaps = frames_.shared().free_pages();
    const uint64_t granules = frames_.held_granules() - frames_.free_granules();
    fullest_.note(history.now(), history.period(), granules * granule_pages - gaps, gaps);
  }
  // Often enough to follow, seldom enough to cost little: a decision considers the whole period. A
  // plan that is wholly carried out leaves a channel idle, and is made anew sooner.
  const bool spent =
      plan_.excess > 0 && (plan_.cleaned == plan_.leaving.size() || plan_.fetch.empty());
  const uint64_t period = history.period();
  const uint64_t often = spent ? 1 : std::max<uint64_t>(period / 128, 8);
  // (The program may wait for what the processor had: nothing happens meanwhile.)
  const uint64_t patience = idle_behind_host ? 0 : often;
  if (!history.known())
    plan_.valid = false;
  else if (!plan_.valid || plan_.period != period || then == Baseline::Then::decide_anew ||
           (history.now() >= plan_.made + patience &&
            clock_.now_ns() >= plan_.made_ns + period * decision_pause_ns))
    replan(lock);
  consider_choice();
  consider_places();
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
  const PlacedBlocks::Place* place = placed_.place_of(coming.identity, coming.bytes);
  return place ? (place->bytes + page_bytes - 1) / page_bytes : coming.bytes / page_bytes;
}

/// Lays out what is there and what comes in the period, as far as it matters to memory.
void EngineImpl::lay_out_period(Outlook& outlook) {
  outlook.clear();
  for (Block* block : live_) {
    if (block->dropping || block->state() == State::dropped) {
      outlook.add_dropped(*learner_, *block, block->pages);
    } else if (may_move(*block)) {
      outlook.add(*learner_, *block,
                  {.size = block->pages, .on_device = block->mapped,
                   .clean = clean_pages(*block)},
                  true);
    }
  }
  for (const auto& region : placed_.regions())
    for (const auto& [address, block] : region->used()) {
      if (block->state() != State::resident || !learner_->life_of(*block)) continue;
      const uint64_t size = (block->place_bytes + page_bytes - 1) / page_bytes;
      outlook.add(*learner_, *block, {.size = size, .on_device = size}, false);
    }
  recipes_.each([&](const Block& block, const Recipe& recipe) FIRN_HELD {
    if (!recipe.keeps_inputs && !Recipes::away(block)) return;
    for (const Block* input : recipe.inputs) outlook.add_recipe(*learner_, block, *input);
  });
  outlook.look_ahead(*learner_, [this](const History::Upcoming& coming) FIRN_HELD {
    return pages_to_come(coming);
  });
}

namespace {
/// Of the device and host memory together: a use in either is one in both.
std::span<const lifetimes::Step> steps_in_memory(const Outlook& outlook,
                                                 std::vector<lifetimes::Step>& steps) {
  using Kind = lifetimes::Step::Kind;
  if (!outlook.has_host_uses()) return outlook.steps();
  steps = outlook.all_steps();
  for (lifetimes::Step& step : steps) {
    if (step.kind == Kind::host_read) step.kind = Kind::read;
    if (step.kind == Kind::host_write) step.kind = Kind::write;
  }
  return steps;
}
}  // namespace

/// Decides anew, without the lock, from what is there and what comes; what has changed meanwhile is
/// no longer meant. One thread does it at a time.
void EngineImpl::replan(Lock& lock) {
  const History& history = learner_->history();
  if (!history.known() || history.period() == 0) plan_.valid = false;
  if (!history.known() || history.period() == 0 || planning_) return;
  const uint64_t now = history.now(), period = history.period(), capacity = movable_capacity();
  const auto spare = static_cast<uint64_t>(static_cast<double>(capacity) * choice_.fraction());
  SlowWork work(SlowWorks::Kind::plan, [this, period] {
    return fmt::format("planning evictions and prefetches on device {}, for an iteration of {} "
                       "allocations, uses and frees (firn_policy:age skips this),",
                       options_.device, period);
  }, options_.slow_works ? *options_.slow_works : SlowWorks::of_process());
  uint64_t cpu_ns = 0;
  lifetimes::Decision decision, for_memory;
  Outlook outlook = std::exchange(outlook_, {});
  {
    CpuTimer timer(cpu_ns);
    lay_out_period(outlook);
    std::vector<lifetimes::Item> in_memory;
    std::vector<lifetimes::Step> in_memory_steps;
    if (store_) lay_out_in_memory(outlook, in_memory);
    const uint64_t host = host_.budget(), spare_most = spare_bytes();
    uint64_t keeps = 0;
    planning_ = true;
    bool decided = true;
    try {
      const UnlockedEngine unlocked(lock);
      none_held("a decision");
      decision =
          lifetimes::decide({capacity, spare, period, outlook.items(), outlook.all_steps()});
      // (SSDs can read at all times; what is used last would come from them all at once.)
      if (store_) {
        const uint64_t to_clean = pages_to_clean(decision, outlook.items()) * page_bytes;
        keeps = lifetimes::host_for_keeping(options_.span_bytes, host, spare_most, to_clean) /
                page_bytes;
        for_memory = lifetimes::decide({capacity + keeps, spare, period, in_memory,
                                        steps_in_memory(outlook, in_memory_steps),
                                        lifetimes::Prefer::written_last});
      }
    } catch (const std::bad_alloc&) {  // the last plan serves, or age, until there is memory
      decided = false;
    }
    planning_ = false;
    host_use_over_ = false;
    plan_.made = now;
    plan_.made_ns = clock_.now_ns();
    if (decided && history.known()) {
      adopt(outlook, decision, store_ && outlook.has_host_uses() ? for_memory : decision, now);
      if (store_)
        EngineTiers::carry_out(*this).adopt_for_memory(for_memory, outlook.blocks(), now, keeps);
      plan_.excess = decision.peak > capacity ? decision.peak - capacity : 0;
      plan_.period = period;
      short_period_.store(plan_.excess > 0 ? period : 0, std::memory_order_relaxed);
    }
    plan_.valid = history.known() && (decided || plan_.valid);
  }
  outlook_ = std::move(outlook);
  counted_.plan_ns += cpu_ns;
  if (now >= reading_since_ + period) {
    reading_.period_over();
    reading_since_ = now;
  }
}

/// Takes the decision, and what is known of each block that was left alone meanwhile: its next use,
/// wherever that is, and its next change.
void EngineImpl::adopt(const Outlook& outlook, const lifetimes::Decision& decision,
                       const lifetimes::Decision& uses, uint64_t now) {
  auto carry = EngineTiers::carry_out(*this);
  const auto event = [now](uint64_t ahead) {
    return ahead == lifetimes::no_use ? ahead : now + ahead;
  };
  for (size_t i = 0; i < outlook.blocks().size(); ++i) {
    const Outlook::Name& name = outlook.blocks()[i];
    if (!carry.meant(name)) continue;
    name.block->next_use = event(uses.next_use[i]);
    name.block->next_change = event(decision.next_change[i]);
  }
  carry.adopt(decision, outlook.blocks(), now);
}

/// Without a plan: while the program frees more than it allocates, what left last comes back. A part
/// of the memory stays free, for what it allocates meanwhile.
bool EngineImpl::fetch_in_reverse() {
  if (!learner_) return false;
  constexpr uint64_t part = 16;  // of the budget
  const uint64_t step = frames_.budget_granules() * granule_bytes / part;
  const auto allocated = static_cast<uint64_t>(hot_.allocated_bytes().current());
  if (!reverse_.falls(allocated, step) || waiting_ > 0 || options_.adversarial) return false;
  const auto away = [this](const Block& block) FIRN_HELD { return may_arrive(block); };
  const auto carry = EngineTiers::carry_out(*this);
  bool any = false;
  while (reverse_.may_fetch()) {
    Block* const block = reverse_.last(away);
    if (!block || block->state() == State::spilling || block->going > 0) break;
    if (!carry.may_bring_ahead()) break;
    const uint64_t wanted = granules_for(*block, block->pages - block->mapped - block->coming);
    const uint64_t least = wanted + step / granule_bytes;
    if (frames_.available() < least) {
      park_ready(false);
      uint64_t parked = 0;
      for (const Block* ready : parked_) parked += ready->mapped;
      if (frames_.available() + parked / granule_pages < least) break;
      reclaim_parked(wanted);
    }
    const uint64_t pages = prefetchable_pages(*block);
    if (pages == 0 || !claim_ahead(*block, pages)) break;
    block->age.store(next_tick(), std::memory_order_relaxed);
    if (block->mapped + block->coming == pages) reverse_.fetched(*block);  // (its first part)
    any = true;
  }
  return any;
}

/// The program needs a block that is away.
void EngineImpl::note_needed(const Block& block) {
  if (!learner_ || plan_.valid) return;
  (void)reverse_.last([this](const Block& of) FIRN_HELD { return may_arrive(of); });
  reverse_.needed(block);
}

/// One round of doing what was decided. True when something was begun.
bool EngineImpl::carry_out() {
  if (options_.baseline && options_.baseline->has_plan()) {
    EngineTiers tiers(*this);
    return options_.baseline->carry_out(tiers);
  }
  if (!plan_.valid) return fetch_in_reverse() || clean_ahead();
  auto carry = EngineTiers::carry_out(*this);
  // (Memory that comes free while threads wait for room is theirs, not the next allocation's.)
  bool any = waiting_ == 0 && allocate_ahead();
  any |= carry.fetch_ahead();
  if (!movement_.stuck()) any |= carry.clean_ahead();
  if (store_) any |= carry.read_ahead();
  return any;
}

}  // namespace firn
