#include "allocator/policy/remake_search.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include "allocator/lifetimes/operator_steps.h"

namespace firn {

using lifetimes::Operators;
using lifetimes::RehearsalMachine;
using lifetimes::Remake;
using lifetimes::RemakeProblem;
using lifetimes::Rewritten;
using lifetimes::Value;
using lifetimes::WaitsMachine;

namespace {

// Prices of keeping a byte, in parts of its time over the link one way.
constexpr std::array prices{.03, .06, .12, .25, .5, 1., 2.};
constexpr double certain_price = 4;  // at which a value is made again rather than kept
// Parts of the iteration for which a value that was made again may be held.
constexpr std::array holds{.02, .08, 1.};
// Values next used sooner, in parts of the iteration, stay anyway.
constexpr uint64_t gap_part = 200;
// Nothing moves if memory but one part of so many suffices.
constexpr uint64_t fits_of = 64;
constexpr unsigned searched = 4;  // looks at one line between two prices
// Single values are turned over, so many times that operators are looked at in all. Where there
// would be few turns there are many values, and prices tell them apart finely enough.
constexpr uint64_t turned_operators = 60'000, turns_least = 24;

/// Of two prices; by the means of both, as sqrt() would be another import of libfirn's.
double geometric_mean(double a, double b) {
  for (unsigned i = 0; i < 6; ++i) {
    const double mean = (a + b) / 2;
    b = a * b / mean;  // the harmonic one
    a = mean;
  }
  return a;
}

bool by_ns(const RemakeTrial& a, const RemakeTrial& b) { return a.ns < b.ns; }

}  // namespace

double mapping_waits_ns(const Operators& operators, const RehearsalMachine& machine, double map_ns,
                        double iteration_ns) {
  constexpr double hidden = .6, waited = .25;
  const uint64_t span = std::max<uint64_t>(machine.span, 1) * machine.page_bytes;
  uint64_t spans = 0;
  std::vector<bool> named(operators.values.size(), false);
  for (const uint32_t value : operators.uses) {
    const Value& of = operators.values[value];
    if (!of.persistent && of.bytes >= remade_bytes_least && !named[value])
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

RemakeSearch::RemakeSearch(const Operators& operators, const RehearsalMachine& machine,
                           double map_ns)
    : operators_(operators), machine_(machine), map_ns_(map_ns), versions_(operators),
      waits_(waits_machine(machine)),
      fits_bytes_(machine.capacity * machine.page_bytes / fits_of * (fits_of - 1)),
      price_(versions_.count(), -1) {
  for (const lifetimes::Operator& one : operators.operators) {
    starts_ns_.push_back(total_ns_);
    total_ns_ += static_cast<double>(one.ns);
  }
  const std::vector<uint64_t> alive = alive_bytes(operators, 0);
  const auto most = std::max_element(alive.begin(), alive.end());
  if (most == alive.end()) return;
  most_bytes_ = *most;
  if (fits()) return;
  cut_ = std::clamp(static_cast<uint32_t>(most - alive.begin()), 1u, operators.count() - 1);
  alone_ns_ = total_ns_ + least_waits_ns(operators_, waits_);
}

/// It is used on either side of the cut, with nothing written in between.
bool RemakeSearch::lives_on(uint32_t version) const {
  const uint32_t value = versions_.value(version);
  const auto uses = versions_.uses(value);
  return versions_.before(value, cut_) == version && !uses.empty() && uses.back() >= cut_;
}

Remake RemakeSearch::solve(const RemakeTrial& trial) {
  const double ns_of_byte = 1e9 / machine_.bytes_s[0];
  const double end = starts_ns_[cut_];
  const double from = trial.late ? end * (1 - trial.part) : 0,
               to = trial.late ? end : end * trial.part;
  const auto set = [&](double kept, double again) {
    for (const uint32_t version : trial.kept) price_[version] = kept;
    for (const uint32_t version : trial.again) price_[version] = again;
  };
  set(0, certain_price);
  Remake remake = problem_->solve(
      [&](uint32_t version) {
        const uint32_t maker = versions_.maker(version);
        const double made = maker == lifetimes::none ? 0 : starts_ns_[maker];
        const bool high = trial.part >= 1 || (trial.part > 0 && made >= from && made < to) ||
                          (trial.low == 0 && !lives_on(version));
        const double price = price_[version] >= 0 ? price_[version]
                             : high               ? trial.high
                                                  : trial.low;
        return price * ns_of_byte *
               static_cast<double>(operators_.values[versions_.value(version)].bytes);
      },
      static_cast<uint64_t>(trial.hold * total_ns_));
  set(-1, -1);
  return remake;
}

size_t RemakeSearch::hash(const Remake& remake) {
  return std::hash<std::string_view>()(
      {reinterpret_cast<const char*>(remake.again.data()), remake.again.size()});
}

bool RemakeSearch::rate(RemakeTrial& trial, const Remake& remake) {
  const Rewritten rewritten = this->rewritten(remake);
  if (rewritten.values == 0) return false;
  const std::vector<uint64_t> alive = alive_bytes(rewritten.operators, 0);
  trial.fits = *std::max_element(alive.begin(), alive.end()) <= fits_bytes_;
  trial.ns = total_ns_ + static_cast<double>(rewritten.ns) +
             least_waits_ns(rewritten.operators, waits_);
  if (!trial.fits) trial.ns += mapping_waits_ns(rewritten.operators, machine_, map_ns_, trial.ns);
  ++rated_;
  return true;
}

/// None: it was rated before, or makes nothing again.
std::optional<RemakeTrial> RemakeSearch::rate_new(RemakeTrial trial) {
  const Remake remake = solve(trial);
  if (!seen_.insert(hash(remake)).second || !rate(trial, remake)) return {};
  trials_.push_back(trial);
  return trial;
}

std::vector<MadeAgain> RemakeSearch::made_again(const Remake& remake) const {
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
void RemakeSearch::search_parts_between(const RemakeTrial& low, const RemakeTrial& high,
                                        bool late, bool to_fit) {
  RemakeTrial trial;
  trial.low = low.high;
  trial.high = high.high;
  trial.late = late;
  trial.hold = high.hold;
  double from = 0, to = 1, from_ns = low.ns, to_ns = high.ns;
  for (unsigned i = 0; i < searched; ++i) {
    trial.part = (from + to) / 2;
    const std::optional<RemakeTrial> found = rate_new(trial);
    if (!found) return;
    if (to_fit ? found->fits : from_ns < to_ns)
      to = trial.part, to_ns = found->ns;
    else
      from = trial.part, from_ns = found->ns;
  }
}

/// Of the same limit: those that make less and more again, the nearest by price.
std::pair<RemakeTrial, RemakeTrial> RemakeSearch::beside(const std::vector<RemakeTrial>& trials,
                                                         const RemakeTrial& best) const {
  RemakeTrial less, more = best;
  less.part = 1;
  less.hold = best.hold;
  less.ns = alone_ns_ + mapping_waits_ns(operators_, machine_, map_ns_, alone_ns_);
  for (const RemakeTrial& other : trials) {
    if (other.hold != best.hold) continue;
    if (other.high < best.high && other.high > less.high) less = other;
    if (other.high > best.high && (more.high == best.high || other.high < more.high)) more = other;
  }
  return {less, more};
}

void RemakeSearch::search_prices() {
  for (const double hold : holds) {
    // Once a price is known to do well, those far from it are left out.
    const double best = hold == holds[0] || trials_.empty()
                            ? 0
                            : std::min_element(trials_.begin(), trials_.end(), by_ns)->high;
    for (const double price : prices)
      if (best == 0 || (price > best / 3 && price < best * 6)) {
        RemakeTrial trial;
        trial.high = price;
        trial.part = 1;
        trial.hold = hold;
        (void)rate_new(trial);
      }
  }
}

/// The price in between is sought by halving (so by its logarithm).
void RemakeSearch::search_prices_between(const RemakeTrial& low, const RemakeTrial& high) {
  double from = low.high, to = high.high, from_ns = low.ns, to_ns = high.ns;
  for (unsigned i = 0; i < searched && from > 0; ++i) {
    RemakeTrial trial = high;
    trial.high = geometric_mean(from, to);
    const std::optional<RemakeTrial> found = rate_new(std::move(trial));
    if (!found) return;
    if (from_ns < to_ns)
      to = found->high, to_ns = found->ns;
    else
      from = found->high, from_ns = found->ns;
  }
}

std::vector<uint32_t> RemakeSearch::to_turn(const std::vector<uint8_t>& again) const {
  std::array<std::vector<std::pair<double, uint32_t>>, 2> found;
  for (uint32_t version = 0; version < versions_.count(); ++version) {
    const Value& value = operators_.values[versions_.value(version)];
    const uint32_t maker = versions_.maker(version);
    if (value.persistent || value.bytes < remade_bytes_least || maker >= cut_ ||
        !lives_on(version) || !operators_.operators[maker].again)
      continue;
    const auto uses = versions_.uses(versions_.value(version));
    const auto next = std::lower_bound(uses.begin(), uses.end(), cut_);
    const double idle_ns = starts_ns_[*next] - starts_ns_[*(next - 1)];
    const double weight = again[version] ? static_cast<double>(operators_.operators[maker].ns)
                                         : idle_ns * static_cast<double>(value.bytes);
    found[again[version] ? 0 : 1].emplace_back(-weight, version);
  }
  std::vector<uint32_t> versions;
  for (auto& part : found) std::sort(part.begin(), part.end());
  for (size_t at = 0; at < std::max(found[0].size(), found[1].size()); ++at)
    for (const auto& part : found)
      if (at < part.size()) versions.push_back(part[at].second);
  return versions;
}

/// The version, and all that is dead at the cut of what it is made of.
void RemakeSearch::add_with_dead(uint32_t version, std::vector<uint32_t>& to) const {
  to.push_back(version);
  for (size_t at = to.size() - 1; at < to.size(); ++at) {
    const uint32_t maker = versions_.maker(to[at]);
    if (maker == lifetimes::none || maker >= cut_) continue;
    for (const uint32_t read : versions_.read_again(maker))
      if (!lives_on(read) && !operators_.values[versions_.value(read)].persistent &&
          std::find(to.begin(), to.end(), read) == to.end())
        to.push_back(read);
  }
}

uint64_t RemakeSearch::turns() const { return turned_operators / operators_.count(); }

RemakeTrial RemakeSearch::turned(RemakeTrial trial, uint32_t version, bool again) const {
  std::erase(trial.kept, version);
  std::erase(trial.again, version);
  if (again)
    trial.kept.push_back(version);
  else
    add_with_dead(version, trial.again);
  return trial;
}

/// From the best, one value after the other is turned over, as long as an iteration takes less.
void RemakeSearch::turn_values() {
  uint64_t turns = this->turns();
  if (turns < turns_least) return;
  RemakeTrial best = *std::min_element(trials_.begin(), trials_.end(), by_ns);
  for (bool better = true; better;) {
    better = false;
    std::vector<uint8_t> again = solve(best).again;
    for (const uint32_t version : to_turn(again)) {
      if (turns-- == 0) return;
      const std::optional<RemakeTrial> found = rate_new(turned(best, version, again[version]));
      if (!found || found->ns >= best.ns) continue;
      best = *found;
      again = solve(best).again;
      better = true;
    }
  }
}

/// Between the best and its neighbours of the same limit, those that make less and more again.
void RemakeSearch::search_parts_around(const std::vector<RemakeTrial>& trials) {
  const RemakeTrial& best = trials.front();
  const auto [less, more] = beside(trials, best);
  for (const bool late : {true, false}) {
    search_parts_between(less, best, late, false);
    if (more.high > best.high) search_parts_between(best, more, late, false);
  }
}

std::vector<RemakeTrial> RemakeSearch::search() {
  const auto gap_ns = static_cast<uint64_t>(total_ns_) / gap_part;
  problem_.emplace(operators_, versions_, cut_,
                   RemakeProblem::Limits{remade_bytes_least, gap_ns});
  const auto sorted = [&] {
    std::sort(trials_.begin(), trials_.end(), by_ns);
    return trials_;
  };
  search_prices();
  if (trials_.empty()) return {};
  const std::vector<RemakeTrial> rough = sorted();
  const auto [less, more] = beside(rough, rough.front());
  search_prices_between(less, rough.front());
  search_prices_between(rough.front(), more);
  const std::vector<RemakeTrial> fine = sorted();
  search_parts_around(rough);
  if (fine.front().ns < rough.front().ns) search_parts_around(fine);
  // The same for the least that has to be made again for nothing to move.
  const auto fitting = std::find_if(rough.begin(), rough.end(),
                                    [](const RemakeTrial& trial) { return trial.fits; });
  if (fitting != rough.end())
    search_parts_between(beside(rough, *fitting).first, *fitting, true, true);
  turn_values();
  return sorted();
}

}  // namespace firn
