// What a decision costs grows as n log n, and a rehearsal, with all its decisions, is cheap beside
// the iteration that it rehearses. Processor time, the least of several, with bounds that only
// another order of growth exceeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "allocator/simulate/kernels.h"

using namespace firn;
using namespace firn::lifetimes;
using namespace firn::program;

namespace {

double cost_s(size_t layers) {
  Decision decision;
  const double seconds = decision_s(train(layers, 1), 5, decision);
  EXPECT_FALSE(decision.farthest.empty());
  EXPECT_FALSE(decision.leaving.empty());
  return seconds;
}

}  // namespace

TEST(DecideCost, grows_as_n_log_n) {
  const double few = cost_s(1000), many = cost_s(8000);
  std::printf("%.2f ms for 7,000 kernels, %.2f ms for 56,000: %.1f times\n", few * 1e3,
              many * 1e3, many / few);
  // 8 times as many: 8 to 11 times as long, with caches that hold less of it; squared it were 64.
  EXPECT_LT(many / few, 30);
}

TEST(DecideCost, of_an_iteration_of_2500_kernels) {
  const Kernels program = train(358, 1);
  Script script(program);
  RehearsalMachine machine;
  machine.page_bytes = 2 << 20;
  machine.capacity = std::max(program.peak() / 2, program.working_set());
  machine.host = 2 * program.peak();
  machine.bytes_s[0] = machine.bytes_s[1] = 2e10;
  script.start_warm(machine.capacity);
  Rehearsal rehearsal = script.rehearsal(machine);
  const double begin = cpu_s();
  const Rehearsed rehearsed = rehearse(rehearsal);
  const double each = (cpu_s() - begin) / rehearsal.periods;
  ASSERT_TRUE(rehearsed.possible);
  EXPECT_GE(rehearsed.decided, 128u);
  std::printf("%zu kernels, %zu items, %zu steps: %.1f ms an iteration, with %.0f decisions\n",
              program.kernels.size(), script.items.size(), script.steps.size(), each * 1e3,
              static_cast<double>(rehearsed.decided) / rehearsal.periods);
  EXPECT_LT(each, 1.0);
}
