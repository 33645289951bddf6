// Blocks that are made again, where something rare happens: a capture begins, a callback of the
// driver's frees, the device dies, an input is lost.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/allocator/capture.h"
#include "tests/allocator/engine/refusing_store.h"
#include "tests/allocator/engine/remaking_program.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr size_t MiB = 1u << 20;

SimulationOptions budget_18mib() {
  SimulationOptions o = small_budget();
  o.span_bytes = 2 * MiB;
  return o;
}

}  // namespace

TEST(EngineRecipesRare, freed_when_the_device_died_while_it_was_made_again) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  void* in = program.make(4 * MiB);
  void* out = program.make(4 * MiB);
  program.write(in, 1);
  program.run(out, {in});
  program.away(out);
  program.failures = 1;
  program.during = [&](uint64_t) {
    EXPECT_EQ(sim.gpu().die(CUDA_ERROR_ILLEGAL_ADDRESS, 0), 0);
  };
  EXPECT_FALSE(program.try_read(out));
  EXPECT_EQ(program.state(out), "remaking");
  program.free(out);
  program.free(in);
  program.engine().trim();
  program.engine().check();
}
