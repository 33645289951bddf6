#include "allocator/policy/spare_choice.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace firn {

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
// If periods take longer than rehearsed by this part, or longer than with all in memory but by no
// more than this part (rehearsals are not so precise, and what is written does not yet fill all of
// the time), so many times the most that is rehearsed is tried, for so many periods each, plus one
// to settle.
constexpr double missed_most = .01, close_most = .05, tried_times[] = {1, 4};
constexpr uint64_t tried_periods = 2;

uint64_t part_of(double fraction) {
  return fraction > 0 ? static_cast<uint64_t>(std::llround(std::max(1., 1 / fraction))) : 0;
}
}  // namespace

/// Begins to take the period's device times when there is something to choose, and asks for a
/// choice when they are known.
bool SpareChoice::consider(Learner& learner, bool plan_short, uint64_t now_ns) {
  if (most_ <= 0 || due_) return false;
  const History& history = learner.history();
  if (!plan_short) {
    learner.set_timing(timing_ = false);
    if (trial_.of == Trial::Of::others) fraction_ = trial_.chosen;
    trial_.of = Trial::Of::nothing;
    return false;
  }
  if (trial_.of != Trial::Of::nothing) {
    follow_trial(history, now_ns);
    return false;
  }
  const uint64_t now = history.now(), period = history.period();
  const uint64_t other = std::max(period, period_) - std::min(period, period_);
  if (!timing_) {
    const uint64_t holds = other <= period_ / 16 ? chosen_periods : chosen_periods_least;
    if (period_ != 0 && now < made_ + holds * period) return false;
    learner.set_timing(timing_ = true);
    since_ = now;
  }
  if (now < since_ + period + period / 8) return false;
  period_ns_ = history.period_ns();
  if (period_ns_ != 0 && period_ns_ != History::never) return true;
  end(learner, false);
  return false;
}

void SpareChoice::take(Outlook& outlook, const History& history,
                       const lifetimes::RehearsalMachine& machine,
                       std::vector<uint64_t> in_store) {
  lifetimes::Rehearsal& rehearsal = stock_.rehearsal;
  rehearsal.machine = machine;
  rehearsal.periods = rehearsed_periods;
  stock_.items.clear();
  stock_.steps.clear();
  if (outlook.steps().size() > steps_most) return;  // nothing is rehearsed
  stock_.items = outlook.items();
  stock_.steps = outlook.steps();
  stock_.before_ns = outlook.step_times(history, period_ns_);
  std::vector<uint64_t>& before_ns = stock_.before_ns;
  rehearsal.after_ns = period_ns_ - (before_ns.empty() ? 0 : before_ns.back());
  for (size_t i = before_ns.size(); i-- > 1;) before_ns[i] -= before_ns[i - 1];
  stock_.in_store = std::move(in_store);
}

void SpareChoice::end(Learner& learner, bool taken) {
  const uint64_t now = learner.history().now(), period = learner.history().period();
  if (!taken && now < since_ + timed_periods * period) return;  // tried again
  period_ = period;
  made_ = now;
  learner.set_timing(timing_ = false);
  due_ = ready_ = taken;
}

/// Compares real periods with the rehearsed one, which leaves things out.
void SpareChoice::follow_trial(const History& history, uint64_t now_ns) {
  const uint64_t now = history.now(), period = history.period();
  const auto settle = [&](Trial::Of of, double spare) FIRN_HELD {
    fraction_ = spare;
    trial_.of = of;
    trial_.from = now + period;
    trial_.from_ns = 0;
  };
  if (period != period_) return settle(Trial::Of::nothing, trial_.chosen);
  if (trial_.from == 0) return settle(trial_.of, trial_.chosen);
  if (now < trial_.from) return;
  if (trial_.from_ns == 0) {
    trial_.from = now;
    trial_.from_ns = now_ns;
    return;
  }
  if (now < trial_.from + tried_periods * period) return;
  const double ns = static_cast<double>(now_ns - trial_.from_ns) * static_cast<double>(period) /
                    static_cast<double>(now - trial_.from);
  const auto least_ns = static_cast<double>(period_ns_);
  if (trial_.of == Trial::Of::what_was_chosen) {
    trial_.chosen_ns = ns;
    const bool missed = ns > trial_.rehearsed_ns * (1 + missed_most);
    if (!missed && ns > least_ns * (1 + close_most)) return settle(Trial::Of::nothing, fraction_);
  } else if (ns <= trial_.chosen_ns * (1 - better_least)) {
    trial_.chosen = fraction_;
    trial_.chosen_ns = ns;
  }
  while (trial_.chosen_ns > least_ns * (1 + better_least) &&
         trial_.tried < std::size(tried_times)) {
    const double other = std::min(most_ * tried_times[trial_.tried++], 1.);
    if (other != trial_.chosen) return settle(Trial::Of::others, other);
  }
  settle(Trial::Of::nothing, trial_.chosen);
}

std::optional<Stock> SpareChoice::due() {
  if (!std::exchange(ready_, false)) return std::nullopt;
  return std::exchange(stock_, {});
}

SpareChoice::Best SpareChoice::best_of(Stock& stock) const {
  Best best{most_, 0};
  if (stock.steps.empty()) return best;
  lifetimes::Rehearsal& rehearsal = stock.rehearsal;
  rehearsal.items = stock.items;
  rehearsal.steps = stock.steps;
  rehearsal.before_ns = stock.before_ns;
  rehearsal.in_store = stock.in_store;
  for (const double part : {1., .25, 0.}) {
    const double spare = most_ * part;
    rehearsal.tuning.spare_part = part_of(spare);
    const Rehearsed rehearsed = lifetimes::rehearse(rehearsal);
    if (!rehearsed.possible) continue;
    const auto ns = static_cast<double>(rehearsed.total_ns - rehearsed.first_ns) /
                    (rehearsed_periods - 1);
    if (best.ns > 0 && ns > best.ns * (1 - better_least)) continue;
    best = {spare, ns};
  }
  return best;
}

void SpareChoice::choose(const Best& best) {
  fraction_ = best.spare;
  due_ = false;
  trial_ = {};
  if (best.ns <= 0) return;
  trial_.of = Trial::Of::what_was_chosen;
  trial_.chosen = best.spare;
  trial_.rehearsed_ns = best.ns;
}

}  // namespace firn
