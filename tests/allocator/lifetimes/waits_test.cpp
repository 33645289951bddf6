// The least that a program waits: by hand, and never more than rehearsals find. FIRN_SEED=N replays
// one, FIRN_SEEDS=N is how many.
#include "allocator/lifetimes/waits.h"

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

/// A takes 100 bytes across the middle, where others take 100 for 10 ns each.
Operators across(unsigned others) {
  Operators program;
  program.values = {{100, false}};
  program.add({.ns = 10}, Values{}, Values{0});
  for (uint32_t i = 0; i < others; ++i) {
    program.values.push_back({100, false});
    program.add({.ns = 10}, Values{}, Values{i + 1});
  }
  program.add({.ns = 10}, Values{0}, Values{});
  return program;
}

// A byte takes 1 ns each way. A leaves for 100 ns before the second operator can begin, and comes
// back for 100 ns after the last but one.
TEST(Waits, a_value_out_and_in_again) {
  const WaitsMachine machine{100, 1000, 1e9, 0, 0};
  EXPECT_NEAR(least_waits_ns(across(1), machine), 200, 1e-6);
  EXPECT_NEAR(least_waits_ns(across(5), machine), 200, 1e-6);
  EXPECT_NEAR(least_waits_ns(across(1), {150, 1000, 1e9, 0, 0}), 100, 1e-6);
  EXPECT_EQ(least_waits_ns(across(1), {200, 1000, 1e9, 0, 0}), 0);
  EXPECT_EQ(least_waits_ns(across(1), {99, 1000, 1e9, 0, 0}),
            std::numeric_limits<double>::infinity());
}

TEST(Waits, beyond_host_memory_the_store_counts) {
  EXPECT_NEAR(least_waits_ns(across(1), {100, 20, 1e9, .5e9, .25e9}), 160 + 320, 1e-6);
  EXPECT_EQ(least_waits_ns(across(1), {100, 20, 1e9, 0, 0}),
            std::numeric_limits<double>::infinity());
}

TEST(Waits, a_persistent_value_written_in_each_iteration) {
  Operators program;
  program.values = {{100, true}, {100, true}};
  program.add({.ns = 30}, Values{0}, Values{0});
  program.add({.ns = 30}, Values{1}, Values{1});
  // Each goes out and comes in while there is room for one: 100 of 160 ns between, twice.
  const double waits = least_waits_ns(program, {100, 1000, 1e9, 0, 0});
  EXPECT_NEAR(waits, 200, 1e-6);
  EXPECT_EQ(least_waits_ns(program, {200, 1000, 1e9, 0, 0}), 0);
}

TEST(Waits, no_rehearsal_waits_less) {
  double close = 0;
  unsigned count = 0;
  for (uint64_t seed = first_seed(), end = seed + seeds(200); seed < end; ++seed) {
    SCOPED_TRACE(replay("lifetimes/waits_test", seed));
    std::mt19937_64 random(seed);
    const Operators program = draw_operators({}, random);
    uint64_t ideal = 0, most = 0, used = 0;
    for (const Operator& one : program.operators) ideal += one.ns;
    for (const uint64_t alive : alive_bytes(program, 0)) most = std::max(most, alive);
    for (const Operator& one : program.operators) {
      uint64_t bytes = 0;
      for (const uint32_t value : program.named(one)) bytes += program.values[value].bytes;
      used = std::max(used, bytes);
    }
    RehearsalMachine machine;
    machine.page_bytes = 1 << 20;
    machine.capacity = std::max(most * (40 + random() % 60) / 100, used) / machine.page_bytes;
    machine.host = 1 << 16;
    machine.piece = machine.span = 1;
    machine.bytes_s[0] = machine.bytes_s[1] = std::ldexp(1e12, static_cast<int>(random() % 6));
    OperatorSteps steps(program, machine.page_bytes, 1);
    steps.start_warm(machine.capacity, machine.host);
    Rehearsal rehearsal = steps.rehearsal(machine);
    rehearsal.periods = 9;
    const Rehearsed rehearsed = rehearse(rehearsal);
    if (!rehearsed.possible) continue;
    const double found = static_cast<double>(rehearsed.total_ns - rehearsed.first_ns) / 8;
    const double least = static_cast<double>(ideal) +
                         least_waits_ns(program, {machine.capacity * machine.page_bytes,
                                                  UINT64_MAX / 2, machine.bytes_s[0], 0, 0});
    ASSERT_LE(least, found * 1.01);
    close += least / found;
    ++count;
  }
  EXPECT_GE(count, drawn_least(.5, seeds(200)));
  if (count > 1) {
    EXPECT_GT(close / count, .8);  // and it says something
  }
}

}  // namespace
