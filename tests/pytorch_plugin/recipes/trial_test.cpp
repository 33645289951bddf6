// RemakeTrial: its stages, and what it finds of iterations' times.
#include "pytorch_plugin/recipes/trial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace firn::pytorch {
namespace {

using Stage = RemakeTrial::Stage;
constexpr unsigned until_after = RemakeTrial::before + RemakeTrial::settle;
constexpr unsigned all = until_after + RemakeTrial::after;

RemakeTrial tried(const std::vector<uint64_t>& times) {
  RemakeTrial trial;
  for (const uint64_t ns : times) trial.iteration(ns);
  return trial;
}

/// Iterations that all take as long before, while settling, and after.
Stage found(uint64_t before_ns, uint64_t settling_ns, uint64_t after_ns) {
  std::vector<uint64_t> times(RemakeTrial::before, before_ns);
  times.insert(times.end(), RemakeTrial::settle, settling_ns);
  times.insert(times.end(), RemakeTrial::after, after_ns);
  return tried(times).stage();
}

TEST(RemakeTrial, stages_follow_by_the_count_of_iterations) {
  RemakeTrial trial;
  for (unsigned i = 0; i < all; ++i) {
    SCOPED_TRACE("behind " + std::to_string(i) + " iterations");
    const bool is_before = i < RemakeTrial::before;
    EXPECT_EQ(trial.stage(), is_before         ? Stage::before
                             : i < until_after ? Stage::settling
                                               : Stage::after);
    EXPECT_EQ(trial.makes_again(), !is_before);
    EXPECT_EQ(trial.before_ns(), is_before ? 0u : 1000u);
    EXPECT_EQ(trial.after_ns(), 0u);
    trial.iteration(1000);
  }
  for (unsigned i = 0; i < 2 * all; ++i) {
    EXPECT_EQ(trial.stage(), Stage::passed);
    EXPECT_TRUE(trial.makes_again());
    EXPECT_EQ(trial.before_ns(), 1000u);
    EXPECT_EQ(trial.after_ns(), 1000u);
    trial.iteration(2000);  // (too late)
  }
}

TEST(RemakeTrial, a_choice_that_is_slower_by_more_than_half_a_percent_fails_for_good) {
  EXPECT_EQ(found(1'000'000, 1'000'000, 1'005'001), Stage::failed);
  EXPECT_EQ(found(1'000'000, 1'000'000, 1'004'999), Stage::passed);
  EXPECT_EQ(found(1'000'000, 1'000'000, 900'000), Stage::passed);
  RemakeTrial trial;
  for (unsigned i = 0; i < all; ++i) trial.iteration(i < until_after ? 1000 : 1100);
  for (unsigned i = 0; i < 2 * all; ++i) {
    EXPECT_EQ(trial.stage(), Stage::failed);
    EXPECT_FALSE(trial.makes_again());
    EXPECT_EQ(trial.before_ns(), 1000u);
    EXPECT_EQ(trial.after_ns(), 1100u);
    trial.iteration(1);
  }
}

TEST(RemakeTrial, iterations_while_the_engine_learns_do_not_count) {
  EXPECT_EQ(found(1000, 5000, 1000), Stage::passed);
  EXPECT_EQ(found(1000, 10, 1100), Stage::failed);
}

TEST(RemakeTrial, the_fastest_iterations_decide) {
  unsigned failed = 0, passed = 0;
  for (unsigned seed = 1; seed <= 300 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<uint64_t> times;
    for (unsigned i = 0; i < all; ++i) times.push_back(100'000 + random() % 3000);
    const uint64_t before = *std::min_element(times.begin(), times.begin() + RemakeTrial::before);
    const uint64_t after = *std::min_element(times.begin() + until_after, times.end());
    const RemakeTrial trial = tried(times);
    EXPECT_EQ(trial.before_ns(), before);
    EXPECT_EQ(trial.after_ns(), after);
    if (after * 1000 == before * 1005) continue;  // (either will do)
    EXPECT_EQ(trial.stage(), after * 1000 > before * 1005 ? Stage::failed : Stage::passed);
    (trial.stage() == Stage::failed ? failed : passed)++;
  }
  EXPECT_GT(failed, 10u);
  EXPECT_GT(passed, 10u);
}

}  // namespace
}  // namespace firn::pytorch
