// Firn's policies and those that they are compared with, on one program.
#include "tests/allocator/simulate/written.h"

namespace firn::simulate {
namespace {

// Layers' results that go out in the forward pass and come back: all of it fits behind the kernels,
// if it begins before memory is short. The oracle knows that from the first iteration on, lifetime
// when it has seen it, and before that what a backward pass needs next; greedy waits a little less
// than age.
TEST(ComparedPolicies, those_that_know_the_iteration_wait_for_nothing) {
  Written program;
  std::vector<uint32_t> made{program.tensor(32 * MiB)};
  program.kernel(2'000'000, {}, made);
  for (size_t i = 1; i < 24; ++i) {
    made.push_back(program.tensor(32 * MiB));
    program.kernel(2'000'000, {made[i - 1]}, {made[i]});
  }
  for (size_t i = made.size(); i-- > 0;) program.kernel(2'000'000, {made[i]}, {});
  const ProgramTrace trace = program.trace();
  MachineOptions options = machine_of(512 * MiB, 16 * GiB);
  const auto by = [&](ComparedPolicy policy) {
    options.policy = policy;
    return run_on(options, trace);
  };
  const ReplayResult age = by(ComparedPolicy::age), lifetime = by(ComparedPolicy::lifetime),
                      oracle = by(ComparedPolicy::oracle), greedy = by(ComparedPolicy::greedy);
  EXPECT_GT(age.steady_s, 1.1 * age.ideal_s);
  for (const double seconds : oracle.iteration_s) EXPECT_NEAR(seconds, oracle.ideal_s, 1e-9);
  ASSERT_EQ(lifetime.iteration_s.size(), 6u);
  EXPECT_LT(lifetime.iteration_s[0], .91 * age.iteration_s[0]) << "what left last came back first";
  EXPECT_NEAR(lifetime.iteration_s[2], lifetime.ideal_s, 1e-9);
  EXPECT_LT(greedy.steady_s, age.steady_s - 1e-4);
}

}  // namespace
}  // namespace firn::simulate
