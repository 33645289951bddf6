// What is made again at a cut: by hand, and against every set of operators that may run again.
// FIRN_SEED=N replays one, FIRN_SEEDS=N is how many.
#include "allocator/lifetimes/remake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "allocator/lifetimes/rewrite.h"
#include "tests/allocator/lifetimes/meaning.h"

using namespace firn;
using namespace firn::lifetimes;
using namespace firn::program;

namespace {

constexpr uint64_t MiB = 1 << 20;
constexpr uint64_t any_hold = UINT64_MAX;

using Values = std::vector<uint32_t>;

/// The header's example: W, A, B, C; `first_again`: whether A can be made again.
Operators example(bool first_again) {
  Operators program;
  program.values = {{MiB, true}, {8 * MiB, false}, {16 * MiB, false}, {16 * MiB, false}};
  const auto add = [&](bool again, const Values& reads, const Values& writes) {
    program.add({.ns = 10'000, .again = again, .source = program.count()}, reads, writes);
  };
  add(first_again, {0}, {1});
  add(true, {1}, {2});
  add(true, {2}, {3});
  add(false, {3}, {});
  add(false, {2}, {});
  return program;
}

std::vector<uint32_t> again_values(const Operators& program, double ns_of_mib,
                                   uint64_t hold_ns_most = any_hold) {
  const Versions versions(program);
  RemakeProblem problem(program, versions, 3, {1, 0});
  const Remake remake = problem.solve(
      [&](uint32_t version) {
        return ns_of_mib * static_cast<double>(program.values[versions.value(version)].bytes / MiB);
      },
      hold_ns_most);
  std::vector<uint32_t> values;
  for (uint32_t version = 0; version < versions.count(); ++version)
    if (remake.again[version]) values.push_back(versions.value(version));
  return values;
}

TEST(Remake, the_example_of_the_header) {
  EXPECT_EQ(again_values(example(true), 2'000), (Values{1, 2, 3}));
  EXPECT_EQ(again_values(example(false), 2'000), (Values{2, 3}));
  EXPECT_EQ(again_values(example(false), 800), (Values{3}));
  EXPECT_EQ(again_values(example(true), 100), Values{});
}

TEST(Remake, what_would_be_held_for_long_is_kept) {
  // B is read 10 us after C is made of it.
  EXPECT_EQ(again_values(example(false), 2'000, 10'000), (Values{2, 3}));
  EXPECT_EQ(again_values(example(false), 2'000, 9'999), (Values{3}));
}

TEST(Remake, nothing_is_made_again_of_what_is_overwritten_first) {
  Operators program;
  program.values = {{MiB, true}, {32 * MiB, false}};
  program.add({.ns = 10, .again = true, .source = 0}, Values{0}, Values{1});
  program.add({.ns = 10, .source = 1}, Values{}, Values{});
  program.add({.ns = 10, .source = 2}, Values{}, Values{0});
  program.add({.ns = 10, .source = 3}, Values{1}, Values{});
  const Versions versions(program);
  const auto all = [](uint32_t) { return 1e9; };
  RemakeProblem before(program, versions, 1, {1, 0});
  EXPECT_EQ(before.bytes(), 0u);
  const Remake remake = before.solve(all, any_hold);
  EXPECT_EQ(std::count(remake.again.begin(), remake.again.end(), 1), 0);
}

TEST(Remake, what_writes_a_persistent_value_runs_once) {
  Operators program;
  program.values = {{MiB, true}, {32 * MiB, false}};
  program.add({.ns = 10, .again = true, .source = 0}, Values{0}, Values{1, 0});
  program.add({.ns = 10, .source = 1}, Values{}, Values{});
  program.add({.ns = 10, .source = 2}, Values{1}, Values{});
  const Versions versions(program);
  EXPECT_EQ(RemakeProblem(program, versions, 1, {1, 0}).bytes(), 0u);
}

/// Of each set of operators that run again: what the rest costs to keep, tried one by one.
class BruteForce {
 public:
  BruteForce(const Operators& program, uint32_t cut, double ns_of_page, uint64_t page)
      : program_(program), versions_(program), cut_(cut), ns_of_page_(ns_of_page), page_(page) {
    for (uint32_t i = 0; i < cut; ++i)
      if (program.operators[i].again) may_.push_back(i);
  }
  size_t sets() const { return size_t{1} << may_.size(); }

  /// None: something that one of them reads is not there.
  std::optional<double> cost(size_t set) const {
    std::vector<bool> runs(cut_);
    double cost = 0;
    for (size_t m = 0; m < may_.size(); ++m)
      if (set >> m & 1) {
        runs[may_[m]] = true;
        cost += static_cast<double>(program_.operators[may_[m]].ns);
      }
    std::vector<bool> kept(versions_.count());
    const auto there = [&](uint32_t version) {
      const uint32_t value = versions_.value(version), maker = versions_.maker(version);
      if (maker != none && maker < cut_ && runs[maker]) return true;
      if (versions_.before(value, cut_) != version) return false;  // overwritten
      if (program_.values[value].persistent || kept[version]) return true;
      kept[version] = true;
      cost += ns_of_page_ * static_cast<double>(program_.values[value].bytes / page_);
      return true;
    };
    for (uint32_t value = 0; value < program_.values.size(); ++value) {
      const auto uses = versions_.uses(value);
      if (program_.values[value].persistent || uses.empty() || uses.front() >= cut_ ||
          uses.back() < cut_)
        continue;
      if (!there(versions_.before(value, cut_))) return std::nullopt;
    }
    for (uint32_t one = 0; one < cut_; ++one) {
      if (!runs[one]) continue;
      for (const uint32_t made : versions_.made_again(one))
        if (program_.values[versions_.value(made)].persistent) return std::nullopt;
      for (const uint32_t read : versions_.read_again(one)) {
        if (!there(read)) return std::nullopt;
        // Values that are overwritten after the cut are left out of this comparison.
        const uint32_t overwritten = versions_.overwritten(read);
        if (overwritten != none && overwritten >= cut_) return std::nullopt;
      }
    }
    return cost;
  }
  size_t set_of(const Remake& remake) const {
    size_t set = 0;
    for (size_t m = 0; m < may_.size(); ++m)
      for (const uint32_t made : versions_.made_again(may_[m]))
        if (remake.again[made]) set |= size_t{1} << m;
    return set;
  }

 private:
  const Operators& program_;
  const Versions versions_;
  const uint32_t cut_;
  const double ns_of_page_;
  const uint64_t page_;
  std::vector<uint32_t> may_;
};

TEST(Remake, no_set_of_operators_is_cheaper) {
  unsigned something = 0, compared = 0;
  for (uint64_t seed = first_seed(), end = seed + seeds(600); seed < end; ++seed) {
    SCOPED_TRACE(replay("lifetimes/remake_test", seed));
    std::mt19937_64 random(seed);
    OperatorBounds bounds;
    bounds.operators[1] = 9;
    bounds.in_place = random() % 2 ? 0.2 : 0;
    const Operators program = draw_operators(bounds, random);
    const auto cut = static_cast<uint32_t>(program.count() / 2);
    const double ns_of_page = std::ldexp(1., static_cast<int>(5 + random() % 10));
    const BruteForce brute(program, cut, ns_of_page, bounds.page_bytes);
    double least = std::numeric_limits<double>::infinity();
    for (size_t set = 0; set < brute.sets(); ++set)
      if (const auto cost = brute.cost(set)) least = std::min(least, *cost);
    const Versions versions(program);
    RemakeProblem problem(program, versions, cut, {1, 0});
    const Remake remake = problem.solve(
        [&](uint32_t version) {
          return ns_of_page * static_cast<double>(program.values[versions.value(version)].bytes /
                                                  bounds.page_bytes);
        },
        any_hold);
    const size_t set = brute.set_of(remake);
    const auto cost = brute.cost(set);
    something += set != 0;
    // It may use what is overwritten only later, which the sets here may not.
    if (!cost) continue;
    ++compared;
    EXPECT_NEAR(*cost, least, 1e-6 * least + 1);
    if (HasFailure()) return;
  }
  EXPECT_GE(something, drawn_least(.17, seeds(600)));
  EXPECT_GE(compared, drawn_least(.67, seeds(600)));
}

}  // namespace
