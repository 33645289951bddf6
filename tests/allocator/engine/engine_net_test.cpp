// The net under accesses that nobody said: each kind is planted, and found.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/allocator/heard.h"
#include "tests/allocator/simulation.h"

namespace firn::test {
namespace {

constexpr size_t block_bytes = 8u << 20;

void* make(Engine& engine, size_t bytes = block_bytes) {
  Result<void*> block = engine.allocate(bytes, nullptr);
  FIRN_CHECK(block, "%s", describe(block.error()).c_str());
  return *block;
}

/// A use that is said, and done.
void use(Simulation& sim, void* block, Access access, uint64_t seed, CUstream stream,
         size_t bytes = block_bytes) {
  Result<Hold> hold = sim.engine(0).touch(block, stream, access);
  FIRN_CHECK(hold, "%s", describe(hold.error()).c_str());
  if (access == Access::write)
    FIRN_CHECK(sim.fill(0, block, bytes, seed, stream), "fill");
  else
    FIRN_CHECK(sim.verify(0, block, bytes, seed, stream), "verify");
  sim.engine(0).release(*hold, stream);
}

/// Pumps until nothing changes by itself any more.
void settle(Simulation& sim) {
  for (int i = 0; i < 200; ++i) {
    if (!sim.engine(0).pump() && !sim.engine(0).busy()) return;
    sim.clock().wait(1'000'000);
  }
}

/// Resident, and with a copy elsewhere: back from where it was, or (`ahead`) copied out ahead.
void make_clean(Simulation& sim, void* block, CUstream stream) {
  sim.engine(0).spill_all();
  use(sim, block, Access::read, 1, stream);
  sim.synchronize();
  settle(sim);
}

SimulationOptions options(bool verify, bool guard, bool poison, bool with_store = false) {
  SimulationOptions o;
  o.verify = verify;
  o.guard = guard;
  o.poison = poison;
  o.with_store = with_store;
  return o;
}

const char* doing() { return "aten::planted"; }

TEST(EngineNet, a_write_that_nobody_said_is_lost_without_the_net) {
  Simulation sim(options(false, false, false));
  const CUstream stream = sim.make_stream(0);
  void* block = make(sim.engine(0));
  use(sim, block, Access::write, 1, stream);
  make_clean(sim, block, stream);
  ASSERT_TRUE(sim.fill(0, block, block_bytes, 2, stream));
  sim.synchronize();
  sim.engine(0).spill_all();
  use(sim, block, Access::read, 1, stream);  // the old bytes are back
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u);
  EXPECT_EQ(sim.engine(0).stats().unseen_writes, 0u);
}

TEST(EngineNet, verify_finds_it_says_who_was_last_and_loses_nothing) {
  Simulation sim(options(true, false, false));
  Heard heard;
  heard.on_doing = doing;
  sim.engine(0).observe(&heard);
  const CUstream stream = sim.make_stream(0);
  void* block = make(sim.engine(0));
  use(sim, block, Access::write, 1, stream);
  make_clean(sim, block, stream);
  ASSERT_TRUE(sim.fill(0, block, block_bytes, 2, stream));
  sim.synchronize();
  testing::internal::CaptureStderr();
  sim.engine(0).spill_all();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("was written UNSEEN"), std::string::npos) << said;
  EXPECT_NE(said.find("from offset 0 on"), std::string::npos) << said;
  EXPECT_NE(said.find("touch read, in aten::planted"), std::string::npos) << said;
  EXPECT_NE(said.find("fault"), std::string::npos) << said;
  EXPECT_EQ(sim.engine(0).stats().unseen_writes, block_bytes / (2u << 20));
  use(sim, block, Access::read, 2, stream);
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
  sim.engine(0).check();
}

TEST(EngineNet, verify_finds_it_where_only_the_stores_sum_is_left) {
  SimulationOptions o = options(true, false, false, true);
  o.host_bytes = 16u << 20;
  Simulation sim(o);
  const CUstream stream = sim.make_stream(0);
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) {  // more than host memory holds
    blocks.push_back(make(sim.engine(0)));
    use(sim, blocks.back(), Access::write, 1, stream);
  }
  sim.engine(0).spill_all();
  settle(sim);
  use(sim, blocks[0], Access::read, 1, stream);
  sim.synchronize();
  for (int i = 1; i < 6; ++i) use(sim, blocks[i], Access::read, 1, stream);
  sim.synchronize();
  settle(sim);
  ASSERT_LT(sim.engine(0).stats().hosted_bytes, 6 * block_bytes);
  testing::internal::CaptureStderr();
  for (void* block : blocks) ASSERT_TRUE(sim.fill(0, block, block_bytes, 2, stream));
  sim.synchronize();
  sim.engine(0).spill_all();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("between the offsets"), std::string::npos) << said;
  for (void* block : blocks) use(sim, block, Access::read, 2, stream);
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
}

TEST(EngineNet, verify_finds_nothing_where_all_is_said) {
  Simulation sim(options(true, true, true, true));
  const CUstream stream = sim.make_stream(0), other = sim.make_stream(0);
  std::vector<void*> blocks(20);  // 160 of 64 MiB
  std::vector<uint64_t> seeds(blocks.size(), 0);
  for (uint64_t i = 0; i < 400; ++i) {
    const size_t at = (i * 7 + i / 20) % blocks.size();
    const CUstream on = i % 3 ? stream : other;
    if (!blocks[at]) blocks[at] = make(sim.engine(0));
    if (seeds[at] == 0 || i % 2) {
      sim.synchronize();  // (the streams do not wait for each other)
      use(sim, blocks[at], Access::write, seeds[at] = i + 1, on);
    } else {
      use(sim, blocks[at], Access::read, seeds[at], on);
    }
    sim.synchronize();
    sim.engine(0).pump();
    if (i % 50 == 49) {
      sim.engine(0).spill_all();
      ASSERT_TRUE(sim.engine(0).free(blocks[at]));
      blocks[at] = nullptr;
      seeds[at] = 0;
    }
    sim.engine(0).check();
  }
  const EngineStats stats = sim.engine(0).stats();
  EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
  EXPECT_EQ(stats.unseen_writes, 0u);
  EXPECT_GT(stats.verified_bytes, 1u << 30);
  EXPECT_GT(stats.clean_dropped_bytes, 0u);
}

TEST(EngineNet, without_it_nothing_is_looked_at) {
  Simulation sim(options(false, false, false));
  const CUstream stream = sim.make_stream(0);
  void* block = make(sim.engine(0));
  use(sim, block, Access::write, 1, stream);
  make_clean(sim, block, stream);
  sim.engine(0).spill_all();
  EXPECT_EQ(sim.engine(0).stats().verified_bytes, 0u);
}

/// Died, or its context did.
bool ended_badly(int status) {
  return WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 99);
}
[[noreturn]] void end_by_context(Simulation& sim) {
  Driver::ContextGuard context(sim.driver(), sim.context(0));
  ::_exit(sim.driver().ctx_synchronize() == CUDA_SUCCESS ? 0 : 99);
}

TEST(EngineNet, guard_makes_the_write_a_fault) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  Simulation sim(options(false, true, false));
  const CUstream stream = sim.make_stream(0);
  void* block = make(sim.engine(0));
  use(sim, block, Access::write, 1, stream);
  make_clean(sim, block, stream);
  EXPECT_EXIT(
      {
        (void)sim.fill(0, block, block_bytes, 2, stream);
        end_by_context(sim);
      },
      ended_badly, "");
  use(sim, block, Access::read, 1, stream);
  use(sim, block, Access::write, 3, stream);  // one that is said opens it
  use(sim, block, Access::read, 3, stream);
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
}

TEST(EngineNet, guard_ends_with_the_blocks_life) {
  Simulation sim(options(false, true, false));
  const CUstream stream = sim.make_stream(0);
  void* block = make(sim.engine(0));
  use(sim, block, Access::write, 1, stream);
  make_clean(sim, block, stream);
  ASSERT_TRUE(sim.engine(0).free(block));
  void* next = make(sim.engine(0));
  EXPECT_EQ(next, block);
  ASSERT_TRUE(sim.fill(0, next, block_bytes, 2, stream));  // a new block's first use: unproven
  sim.synchronize();
  EXPECT_EQ(*static_cast<uint64_t*>(next) == 0, false);
}

TEST(EngineNet, guard_that_cannot_open_a_block_hands_it_to_nobody) {
  Simulation sim(options(false, true, false));
  const CUstream stream = sim.make_stream(0);
  Engine& engine = sim.engine(0);
  void* block = make(engine);
  use(sim, block, Access::write, 1, stream);
  make_clean(sim, block, stream);
  sim.gpu().fail_from("cuMemSetAccess", 1, CUDA_ERROR_UNKNOWN);
  for (int i = 0; i < 3; ++i) {
    Result<Hold> hold = engine.touch(block, stream, Access::write);
    ASSERT_FALSE(hold) << "a kernel of it would fault, try " << i;
    EXPECT_NE(hold.error().text.find("cuMemSetAccess"), std::string::npos) << hold.error().text;
  }
  ASSERT_TRUE(engine.free(block));
  for (int i = 0; i < 3; ++i) {
    Result<void*> next = engine.allocate(block_bytes, stream);
    EXPECT_TRUE(!next || *next != block) << "nor another life of it";
  }
  sim.gpu().fail_at("cuMemSetAccess", 0, CUDA_SUCCESS);
}

TEST(EngineNet, guard_closes_what_is_copied_ahead) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  SimulationOptions o = options(false, true, false);
  o.host_bytes = 256u << 20;
  Simulation sim(o);
  const CUstream stream = sim.make_stream(0);
  std::vector<void*> blocks;
  for (int i = 0; i < 9; ++i) {  // beyond the budget: it is pressed, and copies ahead from now on
    blocks.push_back(make(sim.engine(0)));
    use(sim, blocks.back(), Access::write, 1, stream);
    sim.synchronize();
    settle(sim);
  }
  for (int round = 0; round < 50; ++round) {
    use(sim, blocks[8], Access::read, 1, stream);
    sim.synchronize();
    settle(sim);
  }
  // One that has not left since it was written, and has a copy.
  void* ahead = nullptr;
  for (const BlockInfo& info : sim.engine(0).blocks())
    if (info.base == blocks[1] && std::string(info.state) == "resident") ahead = info.base;
  ASSERT_NE(ahead, nullptr);
  ASSERT_GT(sim.engine(0).stats().spilled_bytes, block_bytes);
  EXPECT_EXIT(
      {
        (void)sim.fill(0, ahead, block_bytes, 2, stream);
        end_by_context(sim);
      },
      ended_badly, "");
}

TEST(EngineNet, poison_is_what_an_early_read_finds) {
  SimulationOptions o = options(false, false, true, true);
  o.host_bytes = 16u << 20;
  Simulation sim(o);
  const CUstream stream = sim.make_stream(0);
  std::vector<void*> blocks;
  for (int i = 0; i < 7; ++i) {
    blocks.push_back(make(sim.engine(0)));
    use(sim, blocks.back(), Access::write, 1, stream);
  }
  sim.engine(0).spill_all();
  settle(sim);
  // Fetched: mapped at once, while the store is still being read.
  ASSERT_TRUE(sim.engine(0).prefetch(blocks[0], 1, stream));
  const auto* word = static_cast<const uint64_t*>(blocks[0]);
  uint64_t seen = 0;
  for (int i = 0; i < 100 && seen == 0; ++i) {
    sim.gpu().advance_to(sim.gpu().now() + 20'000);  // fills take no time; no copy ends so soon
    for (const BlockInfo& info : sim.engine(0).blocks())
      if (info.base == blocks[0] && std::string(info.state) == "faulting") seen = *word;
    sim.engine(0).pump();
  }
  EXPECT_EQ(seen, ~uint64_t{0});
  use(sim, blocks[0], Access::read, 1, stream);
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
}

}  // namespace
}  // namespace firn::test
