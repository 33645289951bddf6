// Policy::greedy: the published plan (lifetimes/greedy.h), made once in a period from measured
// device times and bandwidths, and carried out by the events at which its writes and reads are due.
// Where it exceeds the capacity, or the program does otherwise than it did, blocks leave by age and
// come back on demand: a wrong plan costs time, never a byte.
#include <algorithm>

#include "allocator/engine/engine_impl.h"
#include "allocator/lifetimes/greedy.h"

namespace firn {

using lifetimes::Channel;
using lifetimes::Migration;
using lifetimes::Step;

void EngineImpl::learn_greedy() {
  const uint64_t now = history_->now();
  if (!history_->known()) {
    greedy_.valid = false;
    greedy_.writes.clear();
    greedy_.reads.clear();
    return;
  }
  // A period that slips by some events is the same period: not planned anew at every slip.
  const bool over = now >= greedy_.made + greedy_.period;
  const bool other = history_->period() != greedy_.period &&
                     now >= greedy_.made + greedy_.period / 16;
  if (!greedy_.valid || over || other) replan_greedy();
  pull_triggers();
}

void EngineImpl::replan_greedy() {
  greedy_.valid = false;
  const uint64_t period = history_->period();
  const uint64_t period_ns = period ? history_->ns_until(period) : 0;
  if (period_ns == 0 || period_ns == History::never) return;  // not long enough on the device yet
  lay_out_period();
  const std::vector<uint64_t> step_ns = step_times(period_ns);
  std::vector<Identity> identities(scratch_.items.size());
  for (size_t i = 0; i < scratch_.blocks.size(); ++i) {
    const uint32_t index = scratch_.blocks[i]->index;
    const Life life = index < life_of_.size() ? life_of_[index] : 0;
    if (life) identities[i] = history_->identity(life);
  }
  for (const Step& step : scratch_.steps)
    if (step.kind == Step::Kind::birth)
      identities[step.item] = history_->upcoming(step.ahead).identity;
  lifetimes::GreedyInput input;
  input.capacity = movable_capacity();
  input.capacity -= input.capacity / greedy_spare_part;
  input.period = period;
  input.period_ns = period_ns;
  input.items = scratch_.items;
  input.steps = scratch_.steps;
  input.step_ns = step_ns;
  if (!host_is_passage() || !store_) {
    const uint64_t staging = host_.budget() / 32 + 4 * in_flight_most();
    input.host_capacity = (host_.budget() - std::min(host_.budget(), staging)) / page_bytes;
  }
  // A channel never measured is taken to be as fast as the link, and measured by being used.
  const auto pages_s = [&](Channel channel, double otherwise) {
    const double measured =
        transfers_.bandwidths().bytes_s(channel) / static_cast<double>(page_bytes);
    return measured > 0 ? measured : otherwise;
  };
  constexpr double link = 16e9 / static_cast<double>(page_bytes);
  input.link_out = pages_s(Channel::host_out, pages_s(Channel::host_in, link));
  input.link_in = pages_s(Channel::host_in, input.link_out);
  if (store_) {
    input.store_write = pages_s(Channel::store_write, input.link_out);
    input.store_read = pages_s(Channel::store_read, input.link_in);
  }
  const lifetimes::GreedyPlan plan = lifetimes::plan_greedy(input);
  greedy_.triggers.clear();
  for (const Migration& m : plan.migrations) {
    const bool to_store = m.to == Migration::Place::store;
    greedy_.triggers.push_back({m.write_ahead, identities[m.item], true, to_store});
    greedy_.triggers.push_back({m.read_ahead, identities[m.reader], false, to_store});
  }
  std::stable_sort(greedy_.triggers.begin(), greedy_.triggers.end(),
                   [](const auto& a, const auto& b) { return a.ahead < b.ahead; });
  greedy_.next = 0;
  greedy_.made = history_->now();
  greedy_.period = period;
  greedy_.valid = true;
}

/// Collects what has come due by the events so far.
void EngineImpl::pull_triggers() {
  const uint64_t ahead = history_->now() - greedy_.made;
  for (; greedy_.valid && greedy_.next < greedy_.triggers.size(); ++greedy_.next) {
    const GreedyRun::Trigger& trigger = greedy_.triggers[greedy_.next];
    if (trigger.ahead > ahead) break;
    const Life life = trigger.identity ? history_->holder(trigger.identity) : 0;
    if (!life || life >= block_of_.size()) continue;
    Block& block = table_[block_of_[life]];
    if (life_of_[block.index] != life) continue;
    auto& due = trigger.write ? greedy_.writes : greedy_.reads;
    due.push_back({&block, block.generation, block.age.load(std::memory_order_relaxed),
                   trigger.to_store});
  }
}

bool EngineImpl::carry_out_greedy() {
  bool any = begin_reads();
  if (!stuck_) any |= begin_writes();
  return any;
}

/// Begins writes of blocks whose uses are over: one still in use does not hold back the others.
bool EngineImpl::begin_writes() {
  bool any = false;
  std::erase_if(greedy_.writes, [&](const GreedyRun::Due& due) {
    Block& block = *due.block;
    if (block.generation != due.generation || block.mapped == 0 ||
        block.age.load(std::memory_order_relaxed) != due.age)
      return true;
    const uint64_t w = block.word.load();
    if (word::state(w) != State::spilling && !AgeOrder::may_leave(block, w))
      return (w & (word::pinned | word::freed)) != 0;
    if (!uses_.over_but_on(block, transfers_.out())) {
      (void)uses_.close(block);
      return false;
    }
    block.to_store = due.to_store && store_;
    if (word::state(w) == State::spilling && block.leave) return true;  // leaves by age already
    any |= start_spill(block, true);
    return true;
  });
  return any;
}

/// Begins reads in order, as far as there is room: the rest waits for blocks to leave.
bool EngineImpl::begin_reads() {
  bool any = false;
  // Threads that wait for room have it first.
  while (!greedy_.reads.empty() && waiting_ == 0) {
    const GreedyRun::Due& due = greedy_.reads.front();
    Block& block = *due.block;
    if (block.generation != due.generation || !may_arrive(block)) {
      greedy_.reads.pop_front();
      continue;
    }
    if (arriving_bytes() >= in_flight_most()) break;
    if (block.state() == State::spilling) keep(block);
    const uint64_t wanted =
        std::min<uint64_t>(span_granules_ * granule_pages,
                           block.pages - block.mapped - block.coming);
    if (prefetchable_pages(block) < wanted) {
      park_ready(false);
      reclaim_parked(granules_for(block, wanted));
    }
    if (!prefetch_span(block)) break;
    any = true;
  }
  return any;
}

}  // namespace firn
