// Driver calls of a fixed scenario fail once: what was begun is rolled back, bytes stay right, and
// the next allocation works. With bytes, a sample (all with `--long`); tests/faults has every call,
// more jobs and more answers, with tags in their place.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {

struct Kept {
  void* address;
  size_t bytes;
  uint64_t pattern;
};

/// A job at twice its budget: fills blocks, which spill, reads them all back, frees some. Calls
/// that fail are left out, as a program would that catches the error. Returns how many failed.
int scenario(Simulation& sim, std::vector<Kept>& kept) {
  Engine& engine = sim.engine(0);
  int failed = 0;
  auto touch = [&](Kept& block, Access access, uint64_t pattern) {
    Result<Hold> hold = engine.touch(block.address, nullptr, access);
    if (!hold) {
      ++failed;
      EXPECT_NE(hold.error().code, Code::lost) << describe(hold.error());
      return;
    }
    if (access == Access::write) {
      bool filled = sim.fill(0, block.address, block.bytes, pattern, nullptr);
      if (filled) block.pattern = pattern;
      failed += !filled;
    } else if (block.pattern) {
      failed += !sim.verify(0, block.address, block.bytes, block.pattern, nullptr);
    }
    engine.release(*hold, nullptr);
  };
  for (uint64_t i = 0; i < 5; ++i) {
    size_t bytes = (2u << 20) + i * 700'000;
    Result<void*> made = engine.allocate(bytes, nullptr);
    if (!made) {
      ++failed;
      continue;
    }
    kept.push_back({*made, bytes, 0});
    touch(kept.back(), Access::write, 100 + i);
    engine.pump();
  }
  for (Kept& block : kept) touch(block, Access::read, 0);
  if (!kept.empty()) touch(kept.front(), Access::write, 999);
  engine.spill_all();
  for (Kept& block : kept) touch(block, Access::read, 0);
  if (kept.size() > 2) {
    EXPECT_TRUE(engine.free(kept[1].address));
    kept.erase(kept.begin() + 1);
  }
  Result<void*> small = engine.allocate(1000, nullptr);
  if (small)
    EXPECT_TRUE(engine.free(*small));
  else
    ++failed;
  engine.trim();
  return failed;
}

SimulationOptions options() {
  SimulationOptions o;
  o.budget_bytes = 10u << 20;
  o.host_bytes = 16u << 20;
  o.span_bytes = 2u << 20;  // parts of a block come and go
  return o;
}

void run(uint64_t n, int error, uint64_t& calls) {
  std::vector<Kept> kept;
  Simulation sim(options());
  ASSERT_TRUE(sim.ok()) << sim.error;
  uint64_t before = sim.gpu().fallible_calls();
  if (n) sim.gpu().fail_at("*", n, error);
  scenario(sim, kept);
  calls = sim.gpu().fallible_calls() - before;
  sim.gpu().fail_at("*", 0, 0);
  Engine& engine = sim.engine(0);
  engine.check();
  ASSERT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
  // The next allocation works, and everything that was there is still right.
  Result<void*> next = engine.allocate(5u << 20, nullptr);
  ASSERT_TRUE(next) << describe(next.error());
  ASSERT_TRUE(engine.free(*next));
  for (Kept& block : kept) {
    Result<Hold> hold = engine.touch(block.address, nullptr, Access::read);
    ASSERT_TRUE(hold) << describe(hold.error());
    if (block.pattern) {
      ASSERT_TRUE(sim.verify(0, block.address, block.bytes, block.pattern, nullptr));
    }
    engine.release(*hold, nullptr);
  }
  sim.synchronize();
  ASSERT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
  for (Kept& block : kept) ASSERT_TRUE(engine.free(block.address));
  engine.trim();
  // Copies whose event could not be recorded at first are found complete a little later.
  for (int i = 0; i < 10'000 && (engine.pump() || engine.busy()); ++i)
    sim.clock().wait(1'000'000);
  engine.check();
  FirnGpuCounts counts = sim.counts(0);
  ASSERT_EQ(counts.frame_bytes, 0u);
  ASSERT_LE(counts.frame_bytes_peak, options().budget_bytes);
  ASSERT_EQ(engine.stats().host_used_bytes, 0u);
  ASSERT_EQ(sim.store()->stats().slots_in_use, 0u);
}

}  // namespace

TEST(EngineDriverFault, nth_call_fails) {
  const char* length = std::getenv("FIRN_TEST_LENGTH");
  const uint64_t step = length && std::strcmp(length, "long") == 0 ? 1 : 29;
  uint64_t calls = 0;
  run(0, 0, calls);
  ASSERT_GT(calls, 100u);
  uint64_t most = calls;
  std::printf("%llu calls can fail\n", (unsigned long long)most);
  for (int error : {static_cast<int>(CUDA_ERROR_OUT_OF_MEMORY),
                    static_cast<int>(CUDA_ERROR_UNKNOWN)})
    for (uint64_t n = 1; n <= most; n += step) {
      SCOPED_TRACE("call " + std::to_string(n) + " of " + std::to_string(most) + " answers " +
                   std::to_string(error));
      run(n, error, calls);
      if (HasFatalFailure()) return;
    }
}

TEST(EngineDriverFault, opening_fails_cleanly_for_every_n) {
  uint64_t before;
  {
    Simulation sim(options());
    before = sim.gpu().fallible_calls();
  }
  for (const char* entry : {"cuMemAddressReserve", "cuStreamCreate"}) {
    for (uint64_t n = 1; n <= 6; ++n) {
      SimulationOptions o = options();
      o.fail_entry = entry;
      o.fail_nth = n;
      Simulation sim(o);
      sim.gpu().fail_at(entry, 0, 0);
      if (sim.ok()) continue;  // survived it, or there was no nth call
      EXPECT_NE(sim.error.find(entry), std::string::npos) << sim.error;
      EXPECT_EQ(sim.counts(0).frame_bytes, 0u);
    }
  }
  EXPECT_GT(before, 0u);
}
