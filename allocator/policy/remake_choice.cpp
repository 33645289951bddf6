#include "allocator/policy/remake_choice.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "allocator/lifetimes/coarse.h"
#include "allocator/lifetimes/operator_steps.h"
#include "allocator/policy/remake_search.h"

namespace firn {

using lifetimes::Operator;
using lifetimes::OperatorSteps;
using lifetimes::Operators;
using lifetimes::Rehearsal;
using lifetimes::RehearsalMachine;
using lifetimes::Rehearsed;
using lifetimes::Remake;
using lifetimes::Rewritten;

namespace {

// Making again must be faster by this part, as rehearsed.
constexpr double faster_least = .002;
// Where moving nearly suffices, the least waits of most programs are none: programs are rated on
// machines so many times slower too, on which those with some room to spare come first.
constexpr std::array slower{1.25, 1.6};
constexpr uint64_t spare_part_close = 4;  // of the memory, written ahead

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

RehearsalMachine slowed(RehearsalMachine machine, double factor) {
  for (double& bytes_s : machine.bytes_s) bytes_s /= factor;
  return machine;
}

/// The machine with bandwidths at which moving alone takes at least `measured_ns`.
RehearsalMachine as_measured(const Operators& operators, RehearsalMachine machine,
                             double measured_ns) {
  double total_ns = 0;
  for (const Operator& one : operators.operators) total_ns += static_cast<double>(one.ns);
  const auto short_of = [&](double factor) {
    return total_ns + least_waits_ns(operators, waits_machine(slowed(machine, factor))) <
           measured_ns;
  };
  if (measured_ns <= total_ns * (1 + faster_least) || !short_of(1)) return machine;
  double low = 1, high = slowed_most;
  if (short_of(high)) return slowed(machine, high);
  for (unsigned i = 0; i < 8; ++i) {
    const double middle = (low + high) / 2;
    (short_of(middle) ? low : high) = middle;
  }
  return slowed(machine, high);
}

/// Rehearses an iteration's variants, each alike, as finely as there are few operators.
class Rehearser {
 public:
  static constexpr unsigned rehearsed_least = 3, rehearsed_most = 14;

  Rehearser(const Operators& operators, const RehearsalMachine& machine, double map_ns)
      : machine_(machine), map_ns_(map_ns), budget_(machine.capacity * machine.page_bytes),
        bytes_least_(std::max<uint64_t>(remade_bytes_least, budget_ / 2048)) {
    for (const Operator& one : operators.operators) total_ns_ += one.ns;
    const uint64_t steps =
        OperatorSteps(joined(operators), machine.page_bytes, bytes_least_).steps.size();
    const uint64_t rates = std::min<uint64_t>(effort, uint64_t{operators.count()} * rate_effort);
    const uint64_t looks = (effort - rates) / std::max<uint64_t>(steps, 1);
    most_ = static_cast<unsigned>(
        std::clamp<uint64_t>(looks / decisions_wanted, rehearsed_least, rehearsed_most));
    decisions_ = static_cast<unsigned>(
        std::clamp<uint64_t>(looks / most_, decisions_least, decisions_most));
  }

  /// So many may be rehearsed.
  unsigned most() const { return most_; }
  /// Nanoseconds of an iteration, mapping included unless nothing moves; 0: it is impossible.
  /// `close`: moving alone nearly suffices, and how much is written ahead decides. The engine finds
  /// that by trial (policy/spare_choice.h), and not always the best: the mean of two settings.
  double ns(const Operators& program, bool fits, bool close) const;

 private:
  // In steps of a rehearsal, for each decision; of rating programs, for each operator.
  static constexpr uint64_t effort = 800'000, rate_effort = 200;
  static constexpr unsigned decisions_least = 32, decisions_wanted = 96, decisions_most = 128;

  Operators joined(const Operators& program) const {
    return coarse(program, total_ns_ / 256, budget_ / 16, bytes_least_);
  }

  const RehearsalMachine machine_;
  const double map_ns_;
  const uint64_t budget_, bytes_least_;
  uint64_t total_ns_ = 0;
  unsigned decisions_ = decisions_least, most_ = rehearsed_least;
};

double Rehearser::ns(const Operators& program, bool fits, bool close) const {
  const Operators joined = this->joined(program);
  OperatorSteps steps(joined, machine_.page_bytes, bytes_least_);
  steps.start_warm(machine_.capacity, machine_.host / 2);
  Rehearsal rehearsal = steps.rehearsal(machine_);
  rehearsal.periods = 2;
  rehearsal.decisions = decisions_;
  rehearsal.machine.piece = rehearsal.machine.span =
      std::max(machine_.piece, machine_.capacity / 512);
  // Where host memory holds all that is away, the store has no part in it: half of the decisions.
  const std::vector<uint64_t> alive = alive_bytes(joined, 0);
  const uint64_t most = *std::max_element(alive.begin(), alive.end());
  if (most <= budget_ + machine_.host * machine_.page_bytes / 2)
    rehearsal.machine.bytes_s[2] = rehearsal.machine.bytes_s[3] = 0;
  double ns = 0;
  unsigned rehearsals = 0;
  for (const uint64_t part : {rehearsal.tuning.spare_part, spare_part_close}) {
    rehearsal.tuning.spare_part = part;
    const Rehearsed rehearsed = rehearse(rehearsal);
    if (!rehearsed.possible) return 0;
    ns += static_cast<double>(rehearsed.last_ns);
    ++rehearsals;
    if (!close) break;
  }
  ns /= rehearsals;
  return fits ? ns : ns + mapping_waits_ns(program, machine_, map_ns_, ns);
}

/// The choice so far, and what it is compared with.
class Choosing {
 public:
  Choosing(const Operators& operators, const RehearsalMachine& machine, double map_ns)
      : operators_(operators), map_ns_(map_ns), rated_on_(machine),
        search_(std::in_place, operators, rated_on_, map_ns),
        rehearser_(operators, machine, map_ns), best_ns_(search_->alone_ns()) {
    choice_.rewritten.operators = operators;
  }
  RemakeChoice choose();

 private:
  bool clearly_better(double ns);
  bool take_if_better(const RemakeTrial& trial);
  void take_best_rated(const std::vector<RemakeTrial>& trials);
  void turn_values();
  void search_on(const RehearsalMachine& machine);

  const Operators& operators_;
  const double map_ns_;
  RehearsalMachine rated_on_;
  std::optional<RemakeSearch> search_;  // refers to that machine
  const Rehearser rehearser_;
  RemakeChoice choice_;
  RemakeTrial chosen_;
  bool some_ = false;  // are chosen
  // Moving alone takes no less than its bound. Where that decides nothing it is rehearsed.
  double best_ns_;
  bool close_ = false;  // it was: moving alone nearly suffices
  unsigned rated_ = 0;  // by searches before this one
  std::set<size_t> rehearsed_;  // hashes of what was made again
};

bool Choosing::clearly_better(double ns) {
  if (!some_ && ns >= best_ns_ * (1 - faster_least) && !std::exchange(close_, true))
    best_ns_ = std::max(best_ns_, rehearser_.ns(operators_, false, close_));
  return ns < best_ns_ * (some_ ? 1 : 1 - faster_least);
}

/// It is rehearsed if it may be better: one that is not as rated is not as rehearsed.
bool Choosing::take_if_better(const RemakeTrial& trial) {
  if (!clearly_better(trial.ns)) return false;
  const Remake remake = search_->solve(trial);
  if (!rehearsed_.insert(RemakeSearch::hash(remake)).second) return false;
  Rewritten rewritten = search_->rewritten(remake);
  double ns = 0;
  for (bool close = !close_; close != close_;) {  // once more if that turns out now
    close = close_;
    ns = rehearser_.ns(rewritten.operators, trial.fits, close);
    if (ns == 0 || !clearly_better(ns)) return false;
  }
  if (!std::exchange(some_, true)) choice_.alone_ns = best_ns_;
  choice_.chosen_ns = best_ns_ = ns;
  choice_.rewritten = std::move(rewritten);
  choice_.made_again = search_->made_again(remake);
  chosen_ = trial;
  return true;
}

void Choosing::take_best_rated(const std::vector<RemakeTrial>& trials) {
  const size_t most =
      rehearsed_.size() + std::max(rehearser_.most() / 3, Rehearser::rehearsed_least);
  for (const RemakeTrial& trial : trials) {
    if (rehearsed_.size() >= most || !clearly_better(trial.ns)) return;
    (void)take_if_better(trial);
  }
}

/// From what is chosen, one value after the other is turned over, while rehearsals are left.
void Choosing::turn_values() {
  uint64_t turns = search_->turns();
  if (rehearser_.most() == Rehearser::rehearsed_least) return;
  for (bool better = some_; better;) {
    better = false;
    std::vector<uint8_t> again = search_->solve(chosen_).again;
    for (const uint32_t version : search_->to_turn(again)) {
      if (rehearsed_.size() >= rehearser_.most() || turns-- == 0) return;
      RemakeTrial trial = search_->turned(chosen_, version, again[version]);
      if (!search_->rate(trial, search_->solve(trial)) || !take_if_better(trial)) continue;
      again = search_->solve(chosen_).again;
      better = true;
    }
  }
}

void Choosing::search_on(const RehearsalMachine& machine) {
  rated_ += search_->rated();
  rated_on_ = machine;
  search_.emplace(operators_, rated_on_, map_ns_);
  take_best_rated(search_->search());
}

RemakeChoice Choosing::choose() {
  if (search_->fits() || !clearly_better(search_->total_ns())) return std::move(choice_);
  take_best_rated(search_->search());
  if (close_ && rehearser_.most() > Rehearser::rehearsed_least) {
    const RehearsalMachine given = rated_on_;
    for (const double factor : slower) search_on(slowed(given, factor));
  }
  turn_values();
  choice_.rated = rated_ + search_->rated();
  if (!some_) choice_.alone_ns = choice_.chosen_ns = best_ns_;
  return std::move(choice_);
}

}  // namespace

RemakeChoice choose_remake(const Operators& operators, const RehearsalMachine& machine_of_it,
                           double map_ns, double measured_ns) {
  const RehearsalMachine machine =
      as_measured(operators, with_room(operators, machine_of_it), measured_ns);
  return Choosing(operators, machine, map_ns).choose();
}

}  // namespace firn
