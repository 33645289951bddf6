// Copies to the device are refused now and then, under plans that know every next use, with little
// host memory: whatever part of a block has come back stays somewhere until all of it has.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/allocator/engine/watched.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr size_t MiB = 1u << 20;

SimulationOptions little_host_memory() {
  SimulationOptions o;
  o.memory_bytes = 128 * MiB;
  o.budget_bytes = 24 * MiB;
  o.host_bytes = 6 * MiB;  // three pieces
  o.piece_bytes = 2 * MiB;
  o.policy = Policy::lifetime;
  return o;
}

struct Kept {
  void* address;
  size_t bytes;
  uint64_t pattern;
};

/// A program catches the error and tries again.
void use(Watched& sim, const Kept& block, Access access) {
  Engine& engine = sim->engine(0);
  for (int attempt = 0; attempt < 100; ++attempt) {
    Result<Hold> hold = engine.touch(block.address, nullptr, access);
    if (!hold) {
      ASSERT_EQ(hold.error().code, Code::driver) << describe(hold.error());
      continue;
    }
    const bool done =
        access == Access::write
            ? sim->fill(0, block.address, block.bytes, block.pattern, nullptr)
            : sim->verify(0, block.address, block.bytes, block.pattern, nullptr);
    ASSERT_TRUE(done);
    engine.release(*hold, nullptr);
    return;
  }
  FAIL() << "refused a hundred times";
}

/// Forward and back over blocks of a few pieces, some read again on the way.
void train(Watched& sim, uint64_t seed) {
  Engine& engine = sim->engine(0);
  std::mt19937_64 random(seed);
  std::vector<size_t> sizes;
  for (size_t i = 0; i < 6 + seed % 5; ++i) sizes.push_back((2 + random() % 9) * MiB);
  std::vector<std::pair<size_t, size_t>> again;  // at a step, an earlier block
  for (int i = 0; i < 4; ++i) {
    const size_t at = 1 + random() % (sizes.size() - 1);
    again.push_back({at, random() % at});
  }
  const auto pumps = [&] {
    for (int i = 0; i < 3; ++i) {
      engine.pump();
      sim->clock().wait(100'000);
    }
  };
  for (uint64_t round = 0; round < 12; ++round) {
    std::vector<Kept> blocks;
    for (size_t i = 0; i < sizes.size(); ++i) {
      Result<void*> made = engine.allocate(sizes[i], nullptr);
      ASSERT_TRUE(made) << describe(made.error());
      blocks.push_back({*made, sizes[i], seed * 1000 + round * 20 + i});
      use(sim, blocks.back(), Access::write);
      for (const auto& [at, earlier] : again)
        if (at == i) use(sim, blocks[earlier], Access::read);
      pumps();
      if (::testing::Test::HasFatalFailure()) return;
    }
    while (!blocks.empty()) {
      use(sim, blocks.back(), Access::read);
      ASSERT_TRUE(engine.free(blocks.back().address));
      blocks.pop_back();
      pumps();
      if (::testing::Test::HasFatalFailure()) return;
    }
    engine.check();
  }
  sim->synchronize();
  ASSERT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
}

}  // namespace

TEST(EngineRefusedCopies, parts_of_a_block_that_arrives_are_kept) {
  const char* given = std::getenv("FIRN_SEED");
  const char* length = std::getenv("FIRN_TEST_LENGTH");
  const uint64_t seeds = given ? 1 : length && length[0] == 'l' ? 20 : 8;
  for (uint64_t i = 0; i < seeds; ++i) {
    const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : i;
    SCOPED_TRACE("FIRN_SEED=" + std::to_string(seed));
    Watched sim(little_host_memory());
    sim->gpu().fail_rate("cuMemcpyHtoDAsync", .05, seed, CUDA_ERROR_UNKNOWN);
    train(sim, seed);
    sim->gpu().fail_rate("cuMemcpyHtoDAsync", 0, 0, 0);
    if (HasFatalFailure()) return;
  }
}
