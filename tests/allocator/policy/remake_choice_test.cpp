// The choice of what is made again: never slower than the program as it was, as rehearsed, and near
// the best of all sets of operators on small programs. FIRN_SEED=N replays one, FIRN_SEEDS=N is how
// many.
#include "allocator/policy/remake_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "allocator/lifetimes/operator_steps.h"
#include "tests/allocator/lifetimes/meaning.h"

using namespace firn;
using namespace firn::lifetimes;
using namespace firn::program;

namespace {

using Values = std::vector<uint32_t>;
constexpr uint64_t MiB = 1 << 20;

RehearsalMachine machine_of(uint64_t capacity_mib, double bytes_s) {
  RehearsalMachine machine;
  machine.page_bytes = MiB;
  machine.capacity = capacity_mib;
  machine.host = 1 << 20;
  machine.piece = machine.span = 2;
  machine.bytes_s[0] = machine.bytes_s[1] = bytes_s;
  return machine;
}

/// An iteration among others, rehearsed in full; 0: impossible.
double rehearsed_ns(const Operators& program, const RehearsalMachine& machine) {
  OperatorSteps steps(program, machine.page_bytes, MiB);
  steps.start_warm(machine.capacity, machine.host);
  Rehearsal rehearsal = steps.rehearsal(machine);
  rehearsal.periods = 4;
  const Rehearsed found = rehearse(rehearsal);
  return found.possible ? static_cast<double>(found.total_ns - found.first_ns) / 3 : 0;
}

uint64_t peak_mib(const Operators& program) {
  const std::vector<uint64_t> alive = alive_bytes(program, 0);
  return *std::max_element(alive.begin(), alive.end()) / MiB;
}

struct Drawn : Operators {
  uint32_t value(uint64_t mib, bool persistent) {
    values.push_back({mib * MiB, persistent});
    return static_cast<uint32_t>(values.size() - 1);
  }
  void run(uint64_t ns, bool again, const Values& reads, const Values& writes) {
    add({.ns = ns, .again = again, .source = count()}, reads, writes);
  }
};

/// Layers of one product (slow) and one activation (fast), both used again in reverse order.
Operators layers(unsigned count, uint64_t product_ns, uint64_t activation_ns) {
  Drawn program;
  Values weights, products, activations;
  uint32_t in = program.value(16, true);
  for (unsigned i = 0; i < count; ++i) {
    weights.push_back(program.value(2, true));
    products.push_back(program.value(16, false));
    activations.push_back(program.value(16, false));
    program.run(product_ns, true, {in, weights[i]}, {products[i]});
    program.run(activation_ns, true, {products[i]}, {activations[i]});
    in = activations[i];
  }
  uint32_t gradient = program.value(16, false);
  program.run(activation_ns, false, {in}, {gradient});
  for (unsigned i = count; i-- > 0;) {
    const uint32_t next = program.value(16, false);
    program.run(2 * product_ns, false, {gradient, activations[i], weights[i]}, {next});
    gradient = program.value(16, false);
    program.run(activation_ns, false, {next, products[i]}, {gradient});
  }
  return program;
}

/// Six layers, whose weights' gradients stay until all are used at the end. The first value, number
/// 2, is cheap to make of a small one, by one that is dead at once, and used last but for those.
Operators gradients_until_the_end() {
  constexpr uint64_t slow = 1'000'000, fast = 50'000;
  Drawn program;
  Values products, activations, gradients;
  const uint32_t table = program.value(1, true), rows = program.value(16, false),
                 first = program.value(16, false);
  program.run(fast, true, {table}, {rows});
  program.run(fast, true, {rows}, {first});
  uint32_t in = program.value(16, false);
  program.run(fast, false, {first}, {in});
  for (unsigned i = 0; i < 6; ++i) {
    products.push_back(program.value(16, false));
    activations.push_back(program.value(16, false));
    program.run(slow, true, {in}, {products[i]});
    program.run(fast, true, {products[i]}, {activations[i]});
    in = activations[i];
  }
  uint32_t gradient = program.value(16, false);
  program.run(fast, false, {in}, {gradient});
  for (unsigned i = 6; i-- > 0;) {
    gradients.push_back(program.value(16, false));
    program.run(slow, false, {gradient, activations[i]}, {gradients.back()});
    const uint32_t next = program.value(16, false);
    program.run(slow, false, {gradient}, {next});
    gradient = program.value(16, false);
    program.run(fast, false, {next, products[i]}, {gradient});
  }
  program.run(fast, false, {gradient, first}, {program.value(1, false)});
  for (unsigned i = 6; i-- > 0;) program.run(fast, false, {gradients[i]}, {gradients[i]});
  return program;
}

/// Values of 16 MiB, each as slow to make again as no other, the slow ones among the fast ones.
Operators of_many_costs(unsigned count) {
  Drawn program;
  const uint32_t weight = program.value(1, true), work = program.value(1, false);
  Values made;
  for (unsigned i = 0; i < count; ++i) {
    made.push_back(program.value(16, false));
    program.run(20'000 + 2'000 * (i * 7 % count), true, {weight}, {made[i]});
  }
  for (unsigned i = count; i-- > 0;) program.run(100'000, false, {made[i]}, {work});
  return program;
}

TEST(RemakeChoice, nothing_where_all_fits) {
  const Operators program = layers(8, 1'000'000, 50'000);
  const RemakeChoice choice = choose_remake(program, machine_of(peak_mib(program) + 1, 16e9));
  EXPECT_EQ(choice.rewritten.values, 0u);
  EXPECT_EQ(choice.rewritten.operators.count(), program.count());
  EXPECT_EQ(choice.rated, 0u);
}

TEST(RemakeChoice, nothing_where_moving_hides_behind_operators) {
  const Operators program = layers(8, 10'000'000, 50'000);
  const RemakeChoice choice =
      choose_remake(program, machine_of(peak_mib(program) * 3 / 4, 100e9));
  EXPECT_EQ(choice.rewritten.values, 0u);
}

// 16 MiB take 1 ms over the link, an activation 50 us, a product 1 ms.
TEST(RemakeChoice, cheap_ones_first_and_products_only_where_memory_is_shorter) {
  const Operators program = layers(12, 1'000'000, 50'000);
  const uint64_t peak = peak_mib(program);
  const RemakeChoice some = choose_remake(program, machine_of(peak * 4 / 10, 16.8e9)),
                     more = choose_remake(program, machine_of(peak / 4, 16.8e9));
  EXPECT_GT(some.rewritten.values, 0u);
  EXPECT_EQ(some.rewritten.ns, some.rewritten.values * 50'000);
  EXPECT_LT(some.chosen_ns, .95 * some.alone_ns);
  EXPECT_GT(more.rewritten.values, some.rewritten.values);
  EXPECT_GE(more.chosen_ns, some.chosen_ns);
  EXPECT_LT(more.chosen_ns, .9 * more.alone_ns);
}

TEST(RemakeChoice, bandwidths_count_as_what_an_iteration_took_says) {
  const Operators program = layers(12, 1'000'000, 50'000);
  const RehearsalMachine machine = machine_of(peak_mib(program) * 3 / 4, 200e9);
  const RemakeChoice promised = choose_remake(program, machine);
  ASSERT_EQ(promised.rewritten.values, 0u) << "moving is hidden";
  double total_ns = 0;
  for (const Operator& one : program.operators) total_ns += static_cast<double>(one.ns);
  EXPECT_EQ(choose_remake(program, machine, 0, .9 * total_ns).rewritten.values, 0u);
  EXPECT_EQ(choose_remake(program, machine, 0, total_ns).rewritten.values, 0u);
  const RehearsalMachine slower = machine_of(peak_mib(program) * 3 / 4, 16.8e9);
  const RemakeChoice some = choose_remake(program, slower),
                     more = choose_remake(program, slower, 0, 1.3 * total_ns);
  EXPECT_GT(more.made_again.size(), some.made_again.size());
  EXPECT_GE(more.alone_ns, 1.29 * total_ns);
  EXPECT_LT(more.chosen_ns, .9 * more.alone_ns);
  // Far more than the bandwidths explain: they are an eighth, and no less.
  const RemakeChoice most = choose_remake(program, slower, 0, 100 * total_ns);
  EXPECT_LT(most.alone_ns, 10 * total_ns);
}

// Moving would be hidden by the least that it waits, and takes 2.6 % more as rehearsed; so it would
// be with what lessens memory at its peak alone, where the dead one is kept for the first for
// nothing. What is used last, with the dead one that it is made of, runs again.
TEST(RemakeChoice, what_is_used_last_is_away_at_every_peak) {
  const Operators program = gradients_until_the_end();
  double total_ns = 0;
  for (const Operator& one : program.operators) total_ns += static_cast<double>(one.ns);
  for (const double bytes_s : {16.8e9, 33.6e9}) {
    const RehearsalMachine machine = machine_of(peak_mib(program) * 60 / 100, bytes_s);
    const RemakeChoice choice = choose_remake(program, machine);
    EXPECT_TRUE(std::any_of(choice.made_again.begin(), choice.made_again.end(),
                            [](const MadeAgain& again) { return again.value == 2; }));
    EXPECT_GT(rehearsed_ns(program, machine), 1.02 * total_ns);
    EXPECT_LT(rehearsed_ns(choice.rewritten.operators, machine), 1.01 * total_ns);
  }
}

// Over this link nothing moves in time: so many are made again as do not fit, and no more.
TEST(RemakeChoice, no_more_is_made_again_than_does_not_fit) {
  constexpr unsigned count = 24;
  const Operators program = of_many_costs(count);
  for (uint64_t capacity = 60; capacity < 16 * count; capacity += 20) {
    const RemakeChoice choice = choose_remake(program, machine_of(capacity, 1e9));
    const uint64_t fit = (capacity - 2) / 16;
    EXPECT_EQ(choice.rewritten.values, count - fit) << capacity << " MiB";
  }
}

// What a choice costs: so many programs are looked at, however many values there are to turn over.
TEST(RemakeChoice, as_few_programs_are_rated_as_there_are_many_operators) {
  for (const unsigned count : {200u, 400u, 800u}) {
    const Operators program = of_many_costs(count);
    const RemakeChoice choice = choose_remake(program, machine_of(peak_mib(program) / 2, 1e9));
    EXPECT_GT(choice.rewritten.values, 0u);
    EXPECT_LE(choice.rated, 80 + 2 * 60'000 / program.count()) << program.count();
  }
}

// It uses a part of its memory in the host's; the others gain as they did.
TEST(RemakeChoice, an_operator_larger_than_memory_leaves_the_others_their_choice) {
  Operators program = layers(12, 1'000'000, 50'000);
  const uint64_t capacity = peak_mib(program) * 4 / 10;
  const RemakeChoice without = choose_remake(program, machine_of(capacity, 16.8e9));
  ASSERT_GT(without.rewritten.values, 0u);
  program.values.push_back({(capacity + 2) * MiB, false});
  const auto large = static_cast<uint32_t>(program.values.size() - 1);
  program.add({.ns = 1'000'000, .again = false, .source = program.count()}, Values{},
              Values{large});
  const RemakeChoice choice = choose_remake(program, machine_of(capacity, 16.8e9));
  EXPECT_GT(choice.rewritten.values, without.rewritten.values / 2);
  EXPECT_LT(choice.chosen_ns, .95 * choice.alone_ns);
  EXPECT_TRUE(std::isfinite(choice.alone_ns));
}

TEST(RemakeChoice, what_may_not_run_again_moves) {
  Operators program = layers(12, 1'000'000, 50'000);
  for (Operator& one : program.operators) one.again = false;
  EXPECT_EQ(choose_remake(program, machine_of(peak_mib(program) / 2, 16.8e9)).rewritten.values, 0u);
}

/// The least over all sets of operators that run again, each rehearsed.
double best_of_all(const Operators& program, uint32_t cut, const RehearsalMachine& machine) {
  const Versions versions(program);
  Values may;
  for (uint32_t i = 0; i < cut; ++i) {
    bool of_use = program.operators[i].again;
    for (const uint32_t made : versions.made(i))
      of_use = of_use && !program.values[versions.value(made)].persistent;
    // (Operators that read what is overwritten are left out of the sets.)
    for (const uint32_t read : versions.read(i))
      of_use = of_use && versions.overwritten(read) == none;
    if (of_use) may.push_back(i);
  }
  double best = rehearsed_ns(program, machine);
  for (size_t set = 1; set < size_t{1} << may.size(); ++set) {
    Remake remake{cut, std::vector<uint8_t>(versions.count(), 0)};
    for (size_t m = 0; m < may.size(); ++m)
      if (set >> m & 1)
        for (const uint32_t made : versions.made(may[m]))
          remake.again[made] = versions.before(versions.value(made), cut) == made;
    const double ns = rehearsed_ns(rewrite(program, versions, remake).operators, machine);
    if (ns > 0) best = std::min(best, ns);
  }
  return best;
}

TEST(RemakeChoice, near_the_best_of_all_sets_and_never_slower) {
  double worst = 0, sum = 0;
  unsigned count = 0, better = 0;
  for (uint64_t seed = first_seed(), end = seed + seeds(80); seed < end; ++seed) {
    SCOPED_TRACE(replay("lifetimes/remake_choice_test", seed));
    std::mt19937_64 random(seed);
    OperatorBounds bounds;
    bounds.operators[0] = 5;
    bounds.operators[1] = 7;
    bounds.bytes[0] = 8;
    const Operators program = draw_operators(bounds, random);
    const std::vector<uint64_t> alive = alive_bytes(program, 0);
    const auto cut = static_cast<uint32_t>(
        std::max_element(alive.begin(), alive.end()) - alive.begin());
    if (cut == 0) continue;
    const RehearsalMachine machine =
        machine_of(peak_mib(program) * (45 + random() % 45) / 100,
                   std::ldexp(2e10, static_cast<int>(random() % 5)));
    const RemakeChoice choice = choose_remake(program, machine);
    const Meaning wanted = meaning_of(program, program.values.size()),
                  found = meaning_of(choice.rewritten.operators, program.values.size());
    EXPECT_EQ(found.broken, "");
    EXPECT_EQ(found.read, wanted.read);
    EXPECT_EQ(found.persistent, wanted.persistent);
    const double alone = rehearsed_ns(program, machine);
    if (alone == 0) continue;
    const double chosen = rehearsed_ns(choice.rewritten.operators, machine);
    ASSERT_GT(chosen, 0) << "impossible";
    EXPECT_LE(chosen, 1.01 * alone);
    const double best = best_of_all(program, cut, machine);
    worst = std::max(worst, chosen / best);
    sum += chosen / best;
    better += best < .98 * alone;
    ++count;
    EXPECT_LE(chosen, 1.75 * best);
  }
  EXPECT_GE(better, drawn_least(.12, seeds(80)));
  if (count > 1) {
    std::printf("%u programs, %u gain: %.3f of the best's time in the mean, %.3f at worst\n",
                count, better, sum / count, worst);
    EXPECT_LT(sum / count, count > 50 ? 1.03 : 1.1);
  }
}

}  // namespace
