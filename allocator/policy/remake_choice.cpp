#include "allocator/policy/remake_choice.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/lifetimes/coarse.h"
#include "allocator/lifetimes/operator_steps.h"
#include "allocator/lifetimes/waits.h"

namespace firn {

using lifetimes::Operator;
using lifetimes::OperatorSteps;
using lifetimes::Operators;
using lifetimes::Rehearsal;
using lifetimes::RehearsalMachine;
using lifetimes::Rehearsed;
using lifetimes::Remake;
using lifetimes::RemakeProblem;
using lifetimes::Rewritten;
using lifetimes::Value;
using lifetimes::Versions;
using lifetimes::WaitsMachine;

namespace {

// Prices of keeping a byte, in parts of its time over the link one way.
constexpr std::array prices{.03, .06, .12, .25, .5, 1., 2.};
// Parts of the iteration for which a value that was made again may be held.
constexpr std::array holds{.02, .08, 1.};
// Values next used sooner, in parts of the iteration, stay anyway.
constexpr uint64_t gap_part = 200;
constexpr uint64_t bytes_least = 1 << 20;  // smaller values share memory, and stay
// Making again must be faster by this part, as rehearsed.
constexpr double faster_least = .002;
// Nothing moves if memory but one part of so many suffices.
constexpr uint64_t fits_of = 64;
// Programs rehearsed, until one of them is clearly faster than moving alone.
constexpr unsigned rehearsed_most = 3;
constexpr unsigned searched = 4;  // looks at one line between two prices

/// A way to price versions, and what it comes to.
struct Trial {
  double low = 0, high = 0;  // prices: the high one for a part of what is made before the cut
  double part = 0;           // 0: none, 1: all
  bool late = true;          // the part that is made last, or first
  double hold = 0;
  double ns = 0;             // rated: of an iteration
  bool fits = false;         // nothing has to move
};

/// Where something moves, memory is mapped anew for what is born (planned places are for programs
/// in which nothing does, lifetimes/places.h). Driver calls overlap with operators while there are
/// few; beyond that, a part of what they take is waited for: measured on `firn simulate`.
double mapping_waits_ns(const Operators& operators, const RehearsalMachine& machine, double map_ns,
                        double iteration_ns) {
  constexpr double hidden = .6, waited = .25;
  const uint64_t span = std::max<uint64_t>(machine.span, 1) * machine.page_bytes;
  uint64_t spans = 0;
  std::vector<bool> named(operators.values.size(), false);
  for (const uint32_t value : operators.uses) {
    const Value& of = operators.values[value];
    if (!of.persistent && of.bytes >= bytes_least && !named[value])
      spans += (of.bytes + span - 1) / span;
    named[value] = true;
  }
  const double ns = static_cast<double>(spans) * map_ns;
  return waited * ns * std::max(0., ns / iteration_ns - hidden);
}

WaitsMachine waits_machine(const RehearsalMachine& machine) {
  const uint64_t page = machine.page_bytes;
  return {machine.capacity * page, machine.host * page / 8 * 7,
          machine.bytes_s[0], machine.bytes_s[2], machine.bytes_s[3]};
}

/// An operator that needs more than there is uses the rest in host memory, whatever is chosen:
/// choices are made as if memory were just enough for it.
RehearsalMachine with_room(const Operators& operators, RehearsalMachine machine) {
  for (const Operator& one : operators.operators) {
    uint64_t pages = 0;
    for (const uint32_t value : operators.named(one))
      pages += (operators.values[value].bytes + machine.page_bytes - 1) / machine.page_bytes;
    machine.capacity = std::max(machine.capacity, pages);
  }
  return machine;
}

/// The machine with bandwidths at which moving alone takes at least `measured_ns`.
RehearsalMachine as_measured(const Operators& operators, RehearsalMachine machine,
                             double measured_ns) {
  double total_ns = 0;
  for (const Operator& one : operators.operators) total_ns += static_cast<double>(one.ns);
  const auto slowed = [&](double factor) {
    RehearsalMachine slower = machine;
    for (double& bytes_s : slower.bytes_s) bytes_s /= factor;
    return slower;
  };
  const auto short_of = [&](double factor) {
    return total_ns + least_waits_ns(operators, waits_machine(slowed(factor))) < measured_ns;
  };
  if (measured_ns <= total_ns * (1 + faster_least) || !short_of(1)) return machine;
  double low = 1, high = slowed_most;
  if (short_of(high)) return slowed(high);
  for (unsigned i = 0; i < 8; ++i) {
    const double middle = (low + high) / 2;
    (short_of(middle) ? low : high) = middle;
  }
  return slowed(high);
}

class Chooser {
 public:
  Chooser(const Operators& operators, const RehearsalMachine& machine, double map_ns)
      : operators_(operators), machine_(machine), map_ns_(map_ns), versions_(operators) {
    waits_ = waits_machine(machine);
    fits_bytes_ = machine.capacity * machine.page_bytes / fits_of * (fits_of - 1);
    for (const Operator& one : operators.operators) {
      starts_ns_.push_back(total_ns_);
      total_ns_ += static_cast<double>(one.ns);
    }
  }

  /// The best trials, each different, the best first; none of them worse than nothing.
  std::vector<Trial> search();
  Remake solve(const Trial& trial);
  Rewritten rewritten(const Remake& remake) const { return rewrite(operators_, versions_, remake); }
  std::vector<MadeAgain> made_again(const Remake& remake) const;
  /// The least that moving alone takes, mapping left out.
  double alone_ns() const { return alone_ns_; }
  unsigned rated() const { return rated_; }

 private:
  std::optional<Trial> rate(Trial trial);
  std::pair<Trial, Trial> beside(const std::vector<Trial>& trials, const Trial& best) const;
  void search_between(const Trial& low, const Trial& high, bool late, bool to_fit);

  const Operators& operators_;
  const RehearsalMachine& machine_;
  const double map_ns_;
  const Versions versions_;
  WaitsMachine waits_;
  uint64_t fits_bytes_ = 0;
  std::vector<double> starts_ns_;
  double total_ns_ = 0, alone_ns_ = 0, alone_with_mapping_ns_ = 0;
  std::optional<RemakeProblem> problem_;
  uint32_t cut_ = 0;
  std::vector<Trial> trials_;
  std::set<size_t> seen_;  // hashes of what was made again
  unsigned rated_ = 0;
};

Remake Chooser::solve(const Trial& trial) {
  const double ns_of_byte = 1e9 / machine_.bytes_s[0];
  const double end = starts_ns_[cut_];
  const double from = trial.late ? end * (1 - trial.part) : 0,
               to = trial.late ? end : end * trial.part;
  return problem_->solve(
      [&](uint32_t version) {
        const uint32_t maker = versions_.maker(version);
        const double made = maker == lifetimes::none ? 0 : starts_ns_[maker];
        const bool high = trial.part >= 1 || (trial.part > 0 && made >= from && made < to);
        return (high ? trial.high : trial.low) * ns_of_byte *
               static_cast<double>(operators_.values[versions_.value(version)].bytes);
      },
      static_cast<uint64_t>(trial.hold * total_ns_));
}

/// None: it was rated before, or makes nothing again.
std::optional<Trial> Chooser::rate(Trial trial) {
  const Remake remake = solve(trial);
  const std::string_view again(reinterpret_cast<const char*>(remake.again.data()),
                               remake.again.size());
  if (!seen_.insert(std::hash<std::string_view>()(again)).second) return {};
  const Rewritten rewritten = this->rewritten(remake);
  if (rewritten.values == 0) return {};
  const std::vector<uint64_t> alive = alive_bytes(rewritten.operators, 0);
  trial.fits = *std::max_element(alive.begin(), alive.end()) <= fits_bytes_;
  trial.ns = total_ns_ + static_cast<double>(rewritten.ns) +
             least_waits_ns(rewritten.operators, waits_);
  if (!trial.fits) trial.ns += mapping_waits_ns(rewritten.operators, machine_, map_ns_, trial.ns);
  ++rated_;
  trials_.push_back(trial);
  return trial;
}

std::vector<MadeAgain> Chooser::made_again(const Remake& remake) const {
  std::vector<MadeAgain> all;
  for (uint32_t version = 0; version < versions_.count(); ++version) {
    const uint32_t value = versions_.value(version);
    if (!remake.again[version] || versions_.before(value, cut_) != version) continue;
    uint32_t last = versions_.maker(version);
    for (const uint32_t use : versions_.uses(value))
      if (use < cut_) last = std::max(last, use);
    all.push_back({versions_.maker(version), value, last});
  }
  return all;
}

/// From the low trial to the high one more is made again and fewer bytes move: the best part is
/// sought by halving, or the least with which nothing moves.
void Chooser::search_between(const Trial& low, const Trial& high, bool late, bool to_fit) {
  Trial trial{low.high, high.high, 0, late, high.hold};
  double from = 0, to = 1, from_ns = low.ns, to_ns = high.ns;
  for (unsigned i = 0; i < searched; ++i) {
    trial.part = (from + to) / 2;
    const std::optional<Trial> found = rate(trial);
    if (!found) return;
    if (to_fit ? found->fits : from_ns < to_ns)
      to = trial.part, to_ns = found->ns;
    else
      from = trial.part, from_ns = found->ns;
  }
}

/// Of the same limit: those that make less and more again, the nearest by price.
std::pair<Trial, Trial> Chooser::beside(const std::vector<Trial>& trials, const Trial& best) const {
  Trial less{0, 0, 1, true, best.hold, alone_with_mapping_ns_}, more = best;
  for (const Trial& other : trials) {
    if (other.hold != best.hold) continue;
    if (other.high < best.high && other.high > less.high) less = other;
    if (other.high > best.high && (more.high == best.high || other.high < more.high)) more = other;
  }
  return {less, more};
}

std::vector<Trial> Chooser::search() {
  alone_ns_ = total_ns_ + least_waits_ns(operators_, waits_);
  alone_with_mapping_ns_ = alone_ns_;
  const std::vector<uint64_t> alive = alive_bytes(operators_, 0);
  cut_ = static_cast<uint32_t>(std::max_element(alive.begin(), alive.end()) - alive.begin());
  if (operators_.count() < 2) return {};
  if (alive[cut_] > fits_bytes_)
    alone_with_mapping_ns_ += mapping_waits_ns(operators_, machine_, map_ns_, alone_ns_);
  if (alone_with_mapping_ns_ <= total_ns_ * (1 + faster_least)) return {};
  cut_ = std::clamp(cut_, 1u, operators_.count() - 1);
  problem_.emplace(operators_, versions_, cut_,
                   RemakeProblem::Limits{bytes_least, static_cast<uint64_t>(total_ns_) / gap_part});
  const auto by_ns = [](const Trial& a, const Trial& b) { return a.ns < b.ns; };
  for (const double hold : holds) {
    // Once a price is known to do well, those far from it are left out.
    const double best = hold == holds[0] || trials_.empty()
                            ? 0
                            : std::min_element(trials_.begin(), trials_.end(), by_ns)->high;
    for (const double price : prices)
      if (best == 0 || (price > best / 3 && price < best * 6))
        (void)rate({0, price, 1, true, hold});
  }
  if (trials_.empty()) return {};
  std::sort(trials_.begin(), trials_.end(), by_ns);
  // Between the best and its neighbours of the same limit, those that make less and more again.
  const std::vector<Trial> rough = trials_;
  const Trial best = rough.front();
  const auto [less, more] = beside(rough, best);
  for (const bool late : {true, false}) {
    search_between(less, best, late, false);
    if (more.high > best.high) search_between(best, more, late, false);
  }
  // The same for the least that has to be made again for nothing to move.
  const auto fitting = std::find_if(rough.begin(), rough.end(),
                                    [](const Trial& trial) { return trial.fits; });
  if (fitting != rough.end()) search_between(beside(rough, *fitting).first, *fitting, true, true);
  std::sort(trials_.begin(), trials_.end(), by_ns);
  std::erase_if(trials_, [&](const Trial& trial) { return trial.ns >= alone_with_mapping_ns_; });
  return trials_;
}

/// Nanoseconds of an iteration as rehearsed; 0: it is impossible.
double rehearsed_ns(const Operators& operators, const RehearsalMachine& machine) {
  uint64_t total_ns = 0;
  for (const Operator& one : operators.operators) total_ns += one.ns;
  const uint64_t budget = machine.capacity * machine.page_bytes;
  const uint64_t least = std::max<uint64_t>(bytes_least, budget / 2048);
  const Operators joined = coarse(operators, total_ns / 256, budget / 16, least);
  OperatorSteps steps(joined, machine.page_bytes, least);
  steps.start_warm(machine.capacity, machine.host / 2);
  Rehearsal rehearsal = steps.rehearsal(machine);
  rehearsal.periods = 2;
  rehearsal.decisions = 32;
  rehearsal.machine.piece = rehearsal.machine.span =
      std::max(machine.piece, machine.capacity / 512);
  // Where host memory holds all that is away, the store has no part in it: half of the decisions.
  const std::vector<uint64_t> alive = alive_bytes(joined, 0);
  const uint64_t most = *std::max_element(alive.begin(), alive.end());
  if (most <= budget + machine.host * machine.page_bytes / 2)
    rehearsal.machine.bytes_s[2] = rehearsal.machine.bytes_s[3] = 0;
  const Rehearsed rehearsed = rehearse(rehearsal);
  return rehearsed.possible ? static_cast<double>(rehearsed.last_ns) : 0;
}

}  // namespace

RemakeChoice choose_remake(const Operators& operators, const RehearsalMachine& machine_of_it,
                           double map_ns, double measured_ns) {
  const RehearsalMachine machine =
      as_measured(operators, with_room(operators, machine_of_it), measured_ns);
  RemakeChoice choice;
  Chooser chooser(operators, machine, map_ns);
  const std::vector<Trial> trials = chooser.search();
  choice.rated = chooser.rated();
  choice.rewritten.operators = operators;
  if (trials.empty()) return choice;
  const auto with_mapping = [&](const Operators& program, bool fits) {
    const double ns = rehearsed_ns(program, machine);
    return ns > 0 && !fits ? ns + mapping_waits_ns(program, machine, map_ns, ns) : ns;
  };
  // Moving alone takes no less than its bound. Only where that decides nothing is it rehearsed.
  choice.alone_ns = chooser.alone_ns();
  bool alone_rehearsed = false;
  for (size_t i = 0; i < trials.size() && i < rehearsed_most && !choice.rewritten.values; ++i) {
    const Remake remake = chooser.solve(trials[i]);
    Rewritten rewritten = chooser.rewritten(remake);
    const double ns = with_mapping(rewritten.operators, trials[i].fits);
    if (ns == 0) continue;
    if (ns >= choice.alone_ns * (1 - faster_least) && !std::exchange(alone_rehearsed, true))
      choice.alone_ns = std::max(choice.alone_ns, with_mapping(operators, false));
    if (ns >= choice.alone_ns * (1 - faster_least)) continue;
    choice.chosen_ns = ns;
    choice.rewritten = std::move(rewritten);
    choice.made_again = chooser.made_again(remake);
  }
  if (!choice.rewritten.values) choice.chosen_ns = choice.alone_ns;
  return choice;
}

}  // namespace firn
