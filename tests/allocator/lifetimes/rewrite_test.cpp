// Programs rewritten: every operator, original or run again, reads what the original read, and
// persistent values end alike. FIRN_SEED=N replays one, FIRN_SEEDS=N is how many.
#include "allocator/lifetimes/rewrite.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/allocator/lifetimes/meaning.h"

using namespace firn;
using namespace firn::lifetimes;
using namespace firn::program;

namespace {

constexpr uint64_t MiB = 1 << 20;

/// Checks the rewritten program against the original, which tells nothing of versions.
void expect_the_same(const Operators& from, const Rewritten& to) {
  const Meaning wanted = meaning_of(from, from.values.size());
  const Meaning found = meaning_of(to.operators, from.values.size());
  ASSERT_EQ(wanted.broken, "");
  EXPECT_EQ(found.broken, "");
  EXPECT_EQ(found.read, wanted.read);
  EXPECT_EQ(found.persistent, wanted.persistent);
  // The originals, in their order; what is more is what runs again.
  std::vector<uint32_t> firsts;
  uint64_t ns = 0, again = 0;
  for (const Operator& one : to.operators.operators) {
    const bool first = firsts.size() == one.source;
    if (first) firsts.push_back(one.source);
    again += first ? 0 : one.ns;
    ns += one.ns;
  }
  EXPECT_EQ(firsts.size(), from.count());
  EXPECT_EQ(again, to.ns);
}

/// Tensors of 8 MiB: W persistent, A and B made one of the other and used in reverse order later.
Operators chain(bool first_again = true) {
  Operators program;
  program.values = {{8 * MiB, true}, {8 * MiB, false}, {8 * MiB, false}, {8 * MiB, false}};
  program.add({.ns = 10, .again = first_again, .source = 0}, std::vector<uint32_t>{0},
              std::vector<uint32_t>{1});
  program.add({.ns = 20, .again = true, .source = 1}, std::vector<uint32_t>{1},
              std::vector<uint32_t>{2});
  program.add({.ns = 50, .source = 2}, std::vector<uint32_t>{}, std::vector<uint32_t>{3});
  program.add({.ns = 30, .source = 3}, std::vector<uint32_t>{2, 3}, std::vector<uint32_t>{});
  program.add({.ns = 40, .source = 4}, std::vector<uint32_t>{1}, std::vector<uint32_t>{0});
  return program;
}

TEST(Rewrite, makes_again_just_before_the_next_use_and_once) {
  const Operators program = chain();
  const Versions versions(program);
  Remake remake{3, std::vector<uint8_t>(versions.count(), 0)};
  for (const uint32_t value : {1u, 2u}) remake.again[versions.before(value, 3)] = 1;
  const Rewritten found = rewrite(program, versions, remake);
  EXPECT_EQ(found.values, 2u);
  EXPECT_EQ(found.bytes, 16 * MiB);
  EXPECT_EQ(found.ns, 30u);
  std::vector<uint32_t> order;
  for (const Operator& one : found.operators.operators) order.push_back(one.source);
  EXPECT_EQ(order, (std::vector<uint32_t>{0, 1, 2, 0, 1, 3, 4}));
  expect_the_same(program, found);
}

TEST(Rewrite, what_is_kept_for_another_lives_on) {
  const Operators program = chain(false);
  const Versions versions(program);
  Remake remake{3, std::vector<uint8_t>(versions.count(), 0)};
  remake.again[versions.before(2, 3)] = 1;
  const Rewritten found = rewrite(program, versions, remake);
  EXPECT_EQ(found.ns, 20u);
  const Operator& again = found.operators.operators[3];
  EXPECT_EQ(again.source, 1u);
  EXPECT_EQ(found.operators.reads(again)[0], 1u);
  EXPECT_EQ(found.operators.writes(again)[0], 4u);
  expect_the_same(program, found);
}

TEST(Rewrite, writes_in_place_run_again_in_their_order) {
  Operators program;
  program.values = {{8 * MiB, true}, {8 * MiB, false}, {8 * MiB, false}};
  const std::vector<uint32_t> w{0}, x{1}, y{2}, none_of_them{};
  program.add({.ns = 1, .again = true, .source = 0}, w, x);
  program.add({.ns = 1, .again = true, .source = 1}, x, x);   // in place
  program.add({.ns = 1, .again = true, .source = 2}, none_of_them, x);  // a part of it
  program.add({.ns = 1, .source = 3}, none_of_them, y);
  program.add({.ns = 1, .source = 4}, x, none_of_them);
  const Versions versions(program);
  Remake remake{3, std::vector<uint8_t>(versions.count(), 0)};
  for (const uint32_t maker : {0u, 1u, 2u}) remake.again[versions.made(maker)[0]] = 1;
  const Rewritten found = rewrite(program, versions, remake);
  EXPECT_EQ(found.ns, 3u);
  EXPECT_EQ(found.operators.values.size(), 4u);
  expect_the_same(program, found);
}

TEST(Rewrite, running_statistics_are_written_once) {
  Operators program;
  program.values = {{8 * MiB, true}, {8 * MiB, true}, {8 * MiB, false}, {8 * MiB, false}};
  const std::vector<uint32_t> none_of_them{};
  program.add({.ns = 1, .again = true, .leaves_state = true, .source = 0},
              std::vector<uint32_t>{1, 0}, std::vector<uint32_t>{1, 2});
  program.add({.ns = 1, .source = 1}, none_of_them, std::vector<uint32_t>{3});
  program.add({.ns = 1, .source = 2}, std::vector<uint32_t>{2}, none_of_them);
  const Versions versions(program);
  RemakeProblem problem(program, versions, 2, {1, 0});
  const Rewritten found =
      rewrite(program, versions, problem.solve([](uint32_t) { return 1e6; }, UINT64_MAX));
  ASSERT_EQ(found.operators.count(), 4u);
  const Operator& again = found.operators.operators[2];
  EXPECT_EQ(again.source, 0u);
  EXPECT_EQ(std::vector<uint32_t>(found.operators.reads(again).begin(),
                                  found.operators.reads(again).end()), std::vector<uint32_t>{0});
  ASSERT_EQ(again.writes, 1u);
  EXPECT_EQ(found.operators.writes(again)[0], 4u);
  expect_the_same(program, found);
}

TEST(Rewrite, the_checker_finds_what_is_wrong) {
  const Operators program = chain();
  const Versions versions(program);
  Remake remake{3, std::vector<uint8_t>(versions.count(), 0)};
  for (const uint32_t value : {1u, 2u}) remake.again[versions.before(value, 3)] = 1;
  const Rewritten right = rewrite(program, versions, remake);
  const Meaning wanted = meaning_of(program, program.values.size());
  ASSERT_EQ(meaning_of(right.operators, program.values.size()), wanted);
  // 4 and 5 are 1 and 2, made again.
  const auto original = [](uint32_t value) { return value > 3 ? value - 3 : value; };
  for (const Operator& one : right.operators.operators)
    for (uint64_t use = one.uses_at; use < one.uses_at + one.reads; ++use)
      for (uint32_t value = 0; value < right.operators.values.size(); ++value) {
        Operators wrong = right.operators;
        wrong.uses[use] = value;
        if (original(value) == original(right.operators.uses[use])) continue;
        EXPECT_FALSE(meaning_of(wrong, program.values.size()) == wanted) << use << " " << value;
      }
}

/// Prices of a MiB: 2^(price_least + 0 to 17) ns.
void compare_random_programs(uint64_t count, unsigned price_least) {
  uint64_t again = 0, values = 0;
  for (uint64_t seed = first_seed(), end = seed + seeds(count); seed < end; ++seed) {
    SCOPED_TRACE(replay("lifetimes/rewrite_test", seed));
    std::mt19937_64 random(seed);
    const Operators program = draw_operators({}, random);
    const Versions versions(program);
    const auto cut = static_cast<uint32_t>(1 + random() % (program.count() - 1));
    RemakeProblem problem(program, versions, cut, {MiB * (random() % 4), random() % 20'000});
    const double price = std::ldexp(1., static_cast<int>(price_least + random() % 18));
    const uint64_t hold = random() % 2 ? UINT64_MAX : random() % 400'000;
    const Remake remake = problem.solve(
        [&](uint32_t version) {
          return price * static_cast<double>(program.values[versions.value(version)].bytes / MiB);
        },
        hold);
    const Rewritten found = rewrite(program, versions, remake);
    expect_the_same(program, found);
    again += found.operators.count() - program.count();
    values += found.values;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GE(std::min(again, values), drawn_least(.33, seeds(count)));
}

TEST(Rewrite, random_programs_mean_the_same) { compare_random_programs(3000, 0); }

// Over a very slow link keeping one value may cost more than is told apart.
TEST(Rewrite, programs_with_prices_beyond_counting_mean_the_same) {
  compare_random_programs(1000, 32);
}

}  // namespace
