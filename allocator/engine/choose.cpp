// How much is written ahead, chosen by rehearsal (lifetimes/rehearse.h): once a period is known and
// was timed, the coming periods are rehearsed with each of a few settings on the machine as it was
// measured, and the one that is clearly the fastest is taken. The rehearsal runs in a thread that
// nothing waits for, without the lock. If the periods that follow take longer than rehearsed, more
// is written ahead for some of them, and stays so if that is faster.
#include <algorithm>
#include <cmath>

#include "allocator/base/cpu_timer.h"
#include "allocator/engine/engine_impl.h"

namespace firn {

using lifetimes::Channel;
using lifetimes::Rehearsed;

namespace {
// A setting that writes less must be faster by this part.
constexpr double better_least = .004;
// Chosen anew after so many periods, since bandwidths and other users of the disks change. Sooner
// when the period itself changes.
constexpr uint64_t chosen_periods = 256, chosen_periods_least = 16;
// Times not measured within so many periods are given up.
constexpr uint64_t timed_periods = 8;
// The first of them depends on where everything is at the moment, and does not count.
constexpr unsigned rehearsed_periods = 4;
// Longer periods are not rehearsed: it would take seconds of CPU time.
constexpr size_t steps_most = 100'000;
// If periods take longer than rehearsed by this part, so many times as much is tried, for so many
// periods each, plus one to settle.
constexpr double missed_most = .01, tried_times = 4;
constexpr uint64_t tried_periods = 2;

uint64_t part_of(double fraction) {
  return fraction > 0 ? static_cast<uint64_t>(std::llround(std::max(1., 1 / fraction))) : 0;
}
}  // namespace

/// Nanoseconds of device time from now to each of scratch_.steps, never descending; `period_ns`: of
/// the whole period.
std::vector<uint64_t> EngineImpl::step_times(uint64_t period_ns) const {
  std::vector<uint64_t> times(scratch_.steps.size());
  uint64_t reached_ns = 0;
  for (size_t i = 0; i < times.size(); ++i) {
    const uint64_t ns = history_->ns_until(scratch_.steps[i].ahead);
    if (ns != History::never) reached_ns = std::clamp(ns, reached_ns, period_ns);
    times[i] = reached_ns;
  }
  return times;
}

/// Begins to take the period's device times when there is something to choose, and asks for a
/// choice when they are known.
void EngineImpl::consider_choice() {
  if (options_.policy == Policy::greedy || options_.spare_fraction <= 0 || choice_.due) return;
  if (!plan_.valid || plan_.excess == 0) {
    choice_.timing = false;
    if (choice_.trial.of == Trial::Of::more) spare_fraction_ = choice_.trial.chosen;
    choice_.trial.of = Trial::Of::nothing;
    return;
  }
  if (choice_.trial.of != Trial::Of::nothing) return follow_trial();
  const uint64_t now = history_->now(), period = history_->period();
  const uint64_t other = std::max(period, choice_.period) - std::min(period, choice_.period);
  if (!choice_.timing) {
    const uint64_t holds = other <= choice_.period / 16 ? chosen_periods : chosen_periods_least;
    if (choice_.period != 0 && now < choice_.made + holds * period) return;
    choice_.timing = true;
    choice_.since = now;
  }
  if (now < choice_.since + period + period / 8) return;
  const uint64_t period_ns = history_->ns_until(period);
  const bool timed = period_ns != 0 && period_ns != History::never && take_stock(period_ns);
  if (!timed && now < choice_.since + timed_periods * period) return;
  choice_.period = period;
  choice_.made = now;
  choice_.timing = false;
  choice_.due = choice_.ready = timed;
  if (timed) ponder_due_.store(true, std::memory_order_release);
}

/// Compares real periods with the rehearsed one, which leaves things out.
void EngineImpl::follow_trial() {
  Trial& trial = choice_.trial;
  const uint64_t now = history_->now(), period = history_->period();
  const auto settle = [&](Trial::Of of, double spare) {
    spare_fraction_ = spare;
    trial.of = of;
    trial.from = now + period;
    trial.from_ns = 0;
  };
  if (period != choice_.period) return settle(Trial::Of::nothing, trial.chosen);
  if (trial.from == 0) return settle(trial.of, trial.chosen);
  if (now < trial.from) return;
  if (trial.from_ns == 0) {
    trial.from = now;
    trial.from_ns = clock_.now_ns();
    return;
  }
  if (now < trial.from + tried_periods * period) return;
  const double ns = static_cast<double>(clock_.now_ns() - trial.from_ns) *
                    static_cast<double>(period) / static_cast<double>(now - trial.from);
  if (trial.of == Trial::Of::more)
    return settle(Trial::Of::nothing, ns <= trial.chosen_ns * (1 - better_least)
                                          ? spare_fraction_ : trial.chosen);
  trial.chosen_ns = ns;
  if (ns <= trial.rehearsed_ns * (1 + missed_most))
    return settle(Trial::Of::nothing, trial.chosen);
  settle(Trial::Of::more, std::min(options_.spare_fraction * tried_times, 1.));
}

/// Collects what is to be rehearsed. False: the machine is not measured yet.
bool EngineImpl::take_stock(uint64_t period_ns) {
  auto& [rehearsal, items, steps, before_ns, in_store] = choice_.stock;
  items.clear();
  steps.clear();
  lifetimes::RehearsalMachine& machine = rehearsal.machine;
  for (size_t i = 0; i < lifetimes::channel_count; ++i) {
    const auto channel = static_cast<Channel>(i);
    const bool link = channel == Channel::host_out || channel == Channel::host_in;
    machine.bytes_s[i] = store_ || link ? transfers_.bandwidths().bytes_s(channel) : 0;
    const bool needed = link || (store_ && (host_is_passage() || !plan_.writes.empty()));
    if (needed && machine.bytes_s[i] <= 0) return false;
  }
  lay_out_period();
  machine.capacity = movable_capacity();
  machine.host = host_.budget() / page_bytes;
  machine.page_bytes = page_bytes;
  machine.piece = std::max<uint64_t>(options_.piece_bytes / page_bytes, 1);
  if (scratch_.steps.size() > steps_most) return true;  // nothing is rehearsed
  items = scratch_.items;
  steps = scratch_.steps;
  before_ns = step_times(period_ns);
  rehearsal.after_ns = period_ns - (before_ns.empty() ? 0 : before_ns.back());
  for (size_t i = before_ns.size(); i-- > 1;) before_ns[i] -= before_ns[i - 1];
  in_store.assign(items.size(), 0);
  for (size_t i = 0; i < scratch_.blocks.size(); ++i) {
    const Block& block = *scratch_.blocks[i];
    uint64_t only = 0;
    for (const Piece& piece : block.pieces)
      if (piece.slot_valid && !piece.host && !block.span_of(piece).mapped()) only += piece.bytes;
    in_store[i] = only / page_bytes;
  }
  rehearsal.periods = rehearsed_periods;
  return true;
}

bool EngineImpl::ponder() {
  if (!ponder_due_.exchange(false, std::memory_order_acquire)) return false;
  bool any = ponder_choice();
  any |= ponder_places();
  return any;
}

bool EngineImpl::ponder_choice() {
  Stock stock;
  {
    Lock lock(mutex_);
    if (!std::exchange(choice_.ready, false)) return false;
    std::swap(stock, choice_.stock);
  }
  uint64_t cpu_ns = 0;
  double best = 0, chosen = options_.spare_fraction;
  if (!stock.steps.empty()) {
    CpuTimer timer(cpu_ns);
    lifetimes::Rehearsal& rehearsal = stock.rehearsal;
    rehearsal.items = stock.items;
    rehearsal.steps = stock.steps;
    rehearsal.before_ns = stock.before_ns;
    rehearsal.in_store = stock.in_store;
    for (const double part : {1., .25, 0.}) {
      const double spare = options_.spare_fraction * part;
      rehearsal.tuning.spare_part = part_of(spare);
      const Rehearsed rehearsed = lifetimes::rehearse(rehearsal);
      if (!rehearsed.possible) continue;
      const auto ns = static_cast<double>(rehearsed.total_ns - rehearsed.first_ns);
      if (best > 0 && ns > best * (1 - better_least)) continue;
      best = ns;
      chosen = spare;
    }
  }
  Lock lock(mutex_);
  counted_.plan_ns += cpu_ns;
  spare_fraction_ = chosen;
  choice_.due = false;
  choice_.trial = {};
  if (best <= 0) return true;
  choice_.trial.of = Trial::Of::what_was_chosen;
  choice_.trial.chosen = chosen;
  choice_.trial.rehearsed_ns = best / (rehearsed_periods - 1);
  return true;
}

}  // namespace firn
