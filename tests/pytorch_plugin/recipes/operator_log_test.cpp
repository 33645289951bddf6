// OperatorLog of random programs that repeat, against a naive model that is made of the script.
#include "pytorch_plugin/recipes/operator_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/pytorch_plugin/recipes/looped_program.h"

namespace firn::pytorch {
namespace {

using test::at;
using test::LoopedProgram;
using test::Step;
using Use = OperatorLog::Use;
using Pairs = std::vector<std::pair<uint64_t, uint64_t>>;
constexpr unsigned seeds = 300;

/// No value twice.
void expect_values(std::span<const uint32_t> found, const std::set<uint32_t>& expected) {
  EXPECT_EQ(std::set(found.begin(), found.end()), expected);
  EXPECT_EQ(found.size(), expected.size());
}

/// One iteration of the program, from its operator `from` on.
void expect_alike(const LoopedProgram& program, size_t from, const lifetimes::Operators& operators,
                  const std::vector<std::vector<OperatorLog::Result>>& results) {
  std::map<size_t, uint32_t> value;  // by variable
  Pairs values, found_values;        // bytes, persistent
  std::set<size_t> old;              // variables that were there before
  const size_t count = program.count();
  for (size_t variable = 0; variable < program.variables().size(); ++variable)
    if (program.variables()[variable].is_there(from % count, count)) old.insert(variable);
  ASSERT_EQ(operators.count(), count);
  ASSERT_EQ(results.size(), count);
  for (size_t i = 0; i < count; ++i) {
    SCOPED_TRACE("operator " + std::to_string(i));
    const Step& step = program.step(from + i);
    for (const size_t variable : step.frees) value.erase(variable), old.erase(variable);
    std::set<uint32_t> reads, writes;
    Pairs makes, found_makes;  // value, which result
    uint64_t result_at = 0;
    for (const auto& [variable, use] : step.uses) {
      const uint64_t result = result_at;
      result_at += use == Use::result;
      if (use == Use::result && LoopedProgram::is_returned(step, variable)) continue;
      const auto [known, is_new] = value.try_emplace(variable, values.size());
      if (is_new) values.emplace_back(program.variables()[variable].bytes, old.contains(variable));
      if (use == Use::result) makes.emplace_back(known->second, result);
      if (use != Use::read) writes.insert(known->second);
      if (!is_new || old.contains(variable)) reads.insert(known->second);
    }
    const lifetimes::Operator& found = operators.operators[i];
    expect_values(operators.reads(found), reads);
    expect_values(operators.writes(found), writes);
    EXPECT_EQ(found.ns, step.ns);
    EXPECT_EQ(found.again, step.again);
    EXPECT_EQ(found.source, i);
    for (const auto& each : results[i]) {
      found_makes.emplace_back(each.value, each.at);
      EXPECT_EQ(each.bytes, values.at(each.value).first);
    }
    EXPECT_EQ(found_makes, makes);
  }
  for (const auto& each : operators.values) found_values.emplace_back(each.bytes, each.persistent);
  EXPECT_EQ(found_values, values);
}

TEST(OperatorLog, one_iteration_is_found_where_least_is_in_use_and_is_as_scripted) {
  for (unsigned seed = 1; seed <= seeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    LoopedProgram program(seed);
    const size_t count = program.count(), begin = count + seed % count;
    for (size_t i = 0; i < begin; ++i) program.play(nullptr);
    OperatorLog log;
    const size_t end = 3 * count + seed / 2 % (count + 1);
    for (size_t i = 0; i < end; ++i) {
      program.play(&log);
      log.set_ns(i, program.step(begin + i).ns);
      ASSERT_EQ(log.signature(i), program.step(begin + i).signature);
    }
    ASSERT_EQ(log.size(), end);
    const auto period = log.period(program.events());
    ASSERT_TRUE(period);
    ASSERT_EQ(period->count, count);
    ASSERT_GE(period->first, end - 2 * count);
    ASSERT_LE(period->first, end - count);
    EXPECT_EQ(program.in_use((begin + period->first) % count), program.least_in_use());
    // The iteration may begin anywhere.
    for (size_t first = end - 2 * count; first <= end - count; ++first) {
      SCOPED_TRACE("from logged operator " + std::to_string(first) + " on");
      std::vector<std::vector<OperatorLog::Result>> results(3);
      const lifetimes::Operators operators = log.operators({first, count}, results);
      expect_alike(program, begin + first, operators, results);
    }
  }
}

TEST(OperatorLog, what_was_not_logged_twice_or_did_not_repeat_has_no_period) {
  for (unsigned seed = 1; seed <= seeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    LoopedProgram program(seed);
    const size_t count = program.count();
    OperatorLog log;
    EXPECT_FALSE(log.period(program.events()));
    for (size_t i = 0; i < 2 * count; ++i) {
      EXPECT_FALSE(log.period(program.events())) << "behind " << i << " operators";
      program.play(&log);
    }
    EXPECT_TRUE(log.period(program.events()));
    program.play(&log, 100);
    for (size_t i = 1; i < 2 * count; ++i) {
      EXPECT_FALSE(log.period(program.events())) << i << " operators behind another";
      program.play(&log);
    }
    program.play(&log);
    EXPECT_TRUE(log.period(program.events()));
    log.clear();
    EXPECT_EQ(log.size(), 0u);
    EXPECT_FALSE(log.period(program.events()));
  }
}

/// The time that a quarter of them stay within.
uint64_t quarter(std::vector<uint64_t> of) {
  std::sort(of.begin(), of.end());
  return of.empty() ? 0 : of[(of.size() - 1) / 4];
}

TEST(OperatorLog, operators_of_a_kind_take_as_long_as_a_quarter_of_those_that_did_not_wait) {
  using Kind = std::array<uint64_t, 3>;  // signature, bytes, use
  for (unsigned seed = 1; seed <= seeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::map<Kind, std::vector<uint64_t>> undisturbed, waited;
    std::map<std::pair<Kind, Kind>, std::vector<uint64_t>> gaps;
    std::vector<Kind> kinds(1 + random() % 60);
    for (Kind& kind : kinds) kind = {random() % 2, 512u << random() % 2, random() % 3};
    const auto next = [&](size_t i) { return i + 1 < kinds.size() ? kinds[i + 1] : Kind{}; };
    OperatorLog log;
    const unsigned chance_of_waits = 1 + random() % 4;
    for (size_t i = 0; i < kinds.size(); ++i) {
      const uint64_t ns = random() % 5 ? 1 + random() % 100 : 0, gap_ns = random() % 50;
      const uint64_t waited_ns = random() % chance_of_waits ? 1 + random() % 60 : 0;
      if (random() % 2) log.freed(at(random() % 3));
      log.begin(mix(0, kinds[i][0]));
      log.use(at(random() % 3), kinds[i][1], static_cast<Use>(kinds[i][2]));
      log.end(true, i, waited_ns);
      log.set_ns(i, ns);
      log.set_gap_ns(i, gap_ns);
      gaps[{kinds[i], next(i)}].push_back(gap_ns);
      if (ns == 0) continue;
      if (waited_ns == 0) undisturbed[kinds[i]].push_back(ns);
      if (waited_ns != 0) waited[kinds[i]].push_back(ns - std::min(ns, waited_ns));
    }
    log.leave_waits_out();
    std::vector<std::vector<OperatorLog::Result>> results;
    const lifetimes::Operators operators = log.operators({0, kinds.size()}, results);
    for (size_t i = 0; i < kinds.size(); ++i) {
      const auto& from = undisturbed[kinds[i]].empty() ? waited : undisturbed;
      const auto found = from.find(kinds[i]);
      EXPECT_EQ(operators.operators[i].ns,
                (found == from.end() ? 0 : quarter(found->second)) +
                    quarter(gaps[{kinds[i], next(i)}])) << i;
    }
  }
}

TEST(OperatorLog, it_takes_no_more_than_so_much) {
  OperatorLog log;
  constexpr uint64_t bytes = 1 << 20;
  for (size_t i = 0; i < OperatorLog::operators_most; ++i) {
    ASSERT_FALSE(log.full()) << i;
    log.begin(i);
    log.end(false, 0, 0);
  }
  EXPECT_TRUE(log.full());
  log.clear();
  EXPECT_FALSE(log.full());
  log.begin(1);
  log.use(at(0), bytes, Use::read);
  log.end(false, 0, 0);
  for (size_t i = 0; i < 2 * OperatorLog::uses_most; ++i) log.freed(at(i));
  EXPECT_TRUE(log.full());
}

}  // namespace
}  // namespace firn::pytorch
