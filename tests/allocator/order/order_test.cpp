// solve() against what it promises, on random graphs from seeds.
#include "allocator/order/order.h"

#include <numeric>

#include "tests/allocator/order/instance.h"

using namespace firn::order;
using namespace std::chrono_literals;

namespace {

Plan solved(const Program& program, const Options& options = {}) {
  EXPECT_FALSE(examine(program.storages, program.ops));
  const Plan plan = solve(program.storages, program.ops, options);
  std::vector<uint32_t> given(program.ops.size());
  std::iota(given.begin(), given.end(), 0u);
  EXPECT_EQ(plan.peak_given, Naive(program).peak(given));
  expect_valid(program, plan);
  return plan;
}

TEST(Order, SmallGraphsReachTheOptimum) {
  int compared = 0, optimal = 0, proven = 0;
  for (uint64_t seed : seeds(500)) {
    SCOPED_TRACE(replay(seed));
    const Program program = random_program(seed, 13);
    const Plan plan = solved(program, {.seed = seed, .threads = 1 + unsigned(seed % 2)});
    const uint64_t least = Naive(program).least_peak();
    EXPECT_LE(plan.bound, least);
    EXPECT_GE(plan.peak, least);
    if (HasFailure()) return;
    ++compared;
    optimal += plan.peak == least;
    proven += plan.bound == least;
  }
  EXPECT_GE(optimal, compared * 99 / 100);
  EXPECT_GE(proven, compared * 95 / 100);
}

TEST(Order, LargerGraphsAreValid) {
  for (uint64_t seed : seeds(40)) {
    SCOPED_TRACE(replay(seed));
    solved(random_program(seed, 120), {.deadline = 100ms, .threads = 1 + unsigned(seed % 3)});
    if (HasFailure()) return;
  }
}

TEST(Order, TrainingStepsComeNearTheBound) {
  for (uint64_t seed : seeds(12)) {
    SCOPED_TRACE(replay(seed));
    const Program program = training_step(seed, 4 + seed * 2);
    const Plan plan = solved(program, {.seed = seed});
    EXPECT_LE(plan.height, plan.bound + plan.bound / 8);
    EXPECT_LT(plan.peak, plan.peak_given);
    if (HasFailure()) return;
  }
}

TEST(Order, OneThreadAndASeedGiveTheSameAnswer) {
  for (uint64_t seed : seeds(5)) {
    SCOPED_TRACE(replay(seed));
    for (const Program& program : {training_step(seed, 12), random_program(seed, 60)}) {
      const Options options = {.deadline = 60s, .seed = seed, .threads = 1};
      const Plan one = solved(program, options), two = solved(program, options);
      EXPECT_EQ(one.order, two.order);
      EXPECT_EQ(one.offsets, two.offsets);
    }
  }
}

TEST(Order, NoTimeStillGivesAnAnswer) {
  for (uint64_t seed : seeds(20)) {
    SCOPED_TRACE(replay(seed));
    solved(random_program(seed, 150), {.deadline = 0ns});
    solved(training_step(seed, 10), {.deadline = 0ns, .threads = 1});
  }
}

TEST(Order, TheDeadlineIsKept) {
  const Program program = random_program(7, 20'000);
  ASSERT_GT(program.ops.size(), 1000u);
  const auto begin = std::chrono::steady_clock::now();
  const Plan plan = solve(program.storages, program.ops, {.deadline = 300ms});
  EXPECT_LE(std::chrono::steady_clock::now() - begin, 10s);
  EXPECT_LE(plan.bound, plan.peak);
}

TEST(Order, NothingAtAll) {
  EXPECT_EQ(solve({}, {}, {}).height, 0u);
  const Program full = {{{5, Life::throughout}, {bytes_max - 5, Life::made}}, {{{0}, {1}, {}}}};
  const Plan plan = solved(full);
  EXPECT_EQ(plan.height, bytes_max);
  EXPECT_EQ(solved({{{0, Life::made}}, {{{}, {0}, {}}}}).peak, 0u);
}

}  // namespace
