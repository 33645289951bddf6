// Machines whose driver refuses what others grant: frames that can be shared, host memory at device
// addresses. The software GPU refuses as the environment says.
#include <gtest/gtest.h>

#include <cstdlib>

#include "allocator/memory/host_trial.h"
#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr size_t MiB = 1u << 20;

/// A setting of the software GPU's, for as long as a simulation of the test's.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Setting() { ::unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

SimulationOptions too_small_budget() {
  SimulationOptions o;
  o.budget_bytes = 16 * MiB;
  o.host_bytes = 64 * MiB;
  return o;
}

void* filled(Simulation& sim, uint64_t pattern) {
  Engine& engine = sim.engine(0);
  Result<void*> made = engine.allocate(6 * MiB, nullptr);
  EXPECT_TRUE(made) << describe(made.error());
  if (!made) return nullptr;
  Result<Hold> hold = engine.touch(*made, nullptr, Access::write);
  EXPECT_TRUE(hold) << describe(hold.error());
  EXPECT_TRUE(sim.fill(0, *made, 6 * MiB, pattern, nullptr));
  engine.release(*hold, nullptr);
  return *made;
}

/// Three blocks of 6 MiB are held at once where 16 MiB are allowed: the third one's touch.
Result<Hold> hold_too_much(Simulation& sim, void* blocks[3], Hold held[2]) {
  Engine& engine = sim.engine(0);
  for (int i = 0; i < 3; ++i) blocks[i] = filled(sim, 10 + static_cast<uint64_t>(i));
  engine.spill_all();
  for (int i = 0; i < 2; ++i) {
    Result<Hold> hold = engine.touch(blocks[i], nullptr, Access::read);
    EXPECT_TRUE(hold) << describe(hold.error());
    held[i] = *hold;
  }
  Result<Hold> third = engine.touch(blocks[2], nullptr, Access::read);
  EXPECT_FALSE(third);
  return engine.touch_anyway(blocks[2], nullptr, Access::read);
}

TEST(Refusals, count_when_the_program_is_told) {
  Simulation sim(too_small_budget());
  Engine& engine = sim.engine(0);
  void* blocks[3];
  Hold held[2];
  Result<Hold> third = hold_too_much(sim, blocks, held);  // refused, and had in host memory
  ASSERT_TRUE(third) << describe(third.error());
  ASSERT_FALSE(engine.allocate(20 * MiB, nullptr));
  EXPECT_EQ(engine.stats().oom_count, 0u) << "its caller may do otherwise";
  engine.count_refusal();
  EXPECT_EQ(engine.stats().oom_count, 1u);
  engine.release(*third, nullptr);
  for (const Hold& hold : held) engine.release(hold, nullptr);
}

void expect_refused_and_whole(Simulation& sim, const char* why) {
  void* blocks[3];
  Hold held[2];
  Result<Hold> third = hold_too_much(sim, blocks, held);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, Code::out_of_memory) << describe(third.error());
  for (const char* words : {"firn_budget", "host memory", why})
    EXPECT_NE(third.error().text.find(words), std::string::npos) << third.error().text;
  for (const Hold& hold : held) sim.engine(0).release(hold, nullptr);
  for (uint64_t i = 0; i < 3; ++i) {
    Result<Hold> hold = sim.engine(0).touch(blocks[i], nullptr, Access::read);
    ASSERT_TRUE(hold) << describe(hold.error());
    EXPECT_TRUE(sim.verify(0, blocks[i], 6 * MiB, 10 + i, nullptr));
    sim.engine(0).release(*hold, nullptr);
  }
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
}

}  // namespace

class ShareableFrames : public ::testing::TestWithParam<const char*> {};

TEST_P(ShareableFrames, are_done_without_where_the_driver_refuses_them) {
  Setting setting("FIRN_GPU_POSIX_FD", GetParam());
  Simulation sim(too_small_budget());
  ASSERT_TRUE(sim.ok()) << sim.error;
  void* block = filled(sim, 1);
  ASSERT_TRUE(block);
  EXPECT_TRUE(sim.verify(0, block, 6 * MiB, 1, nullptr));
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u);
  EXPECT_FALSE(sim.engine(0).export_memory(block, "a test"));
}
// NOT_SUPPORTED, NOT_PERMITTED; OPERATING_SYSTEM, UNKNOWN, INVALID_VALUE.
INSTANTIATE_TEST_SUITE_P(Machines, ShareableFrames,
                         ::testing::Values("801", "800", "304", "999", "1"));

TEST(Shareable, one_refusal_later_is_no_reason_to_do_without) {
  Simulation sim(too_small_budget());
  void* first = filled(sim, 1);
  sim.gpu().fail_at("cuMemCreate", 1, 999);
  EXPECT_FALSE(sim.engine(0).allocate(6 * MiB, nullptr));
  void* second = filled(sim, 2);
  for (void* block : {first, second})
    EXPECT_TRUE(sim.engine(0).export_memory(block, "a test"));
}

TEST(HostMemory, is_used_where_nothing_else_is_left) {
  Simulation sim(too_small_budget());
  void* blocks[3];
  Hold held[2];
  Result<Hold> third = hold_too_much(sim, blocks, held);
  ASSERT_TRUE(third) << describe(third.error());
  EXPECT_TRUE(sim.verify(0, blocks[2], 6 * MiB, 12, nullptr));
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u);
  sim.engine(0).release(*third, nullptr);
  for (const Hold& hold : held) sim.engine(0).release(hold, nullptr);
}

class HostCopies : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

/// A block that is written where it lies in host memory leaves for staging and comes back.
TEST_P(HostCopies, are_made_otherwise_where_the_driver_refuses_them) {
  Setting setting("FIRN_GPU_HOST_NUMA", GetParam().first);
  Simulation sim(too_small_budget());
  void* blocks[3];
  Hold held[2];
  Result<Hold> third = hold_too_much(sim, blocks, held);
  ASSERT_TRUE(third) << describe(third.error());
  EXPECT_TRUE(sim.verify(0, blocks[2], 6 * MiB, 12, nullptr));
  sim.engine(0).release(*third, nullptr);
  Result<Hold> again = sim.engine(0).touch_anyway(blocks[2], nullptr, Access::write);
  ASSERT_TRUE(again) << describe(again.error());
  EXPECT_TRUE(sim.fill(0, blocks[2], 6 * MiB, 99, nullptr));
  sim.engine(0).release(*again, nullptr);
  for (const Hold& hold : held) sim.engine(0).release(hold, nullptr);
  sim.engine(0).spill_all();
  Result<Hold> back = sim.engine(0).touch(blocks[2], nullptr, Access::read);
  ASSERT_TRUE(back) << describe(back.error());
  EXPECT_TRUE(sim.verify(0, blocks[2], 6 * MiB, 99, nullptr));
  sim.engine(0).release(*back, nullptr);
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
  unsigned said = 0;
  for (const std::string& words : sim.engine(0).stats().trouble)
    said += words.find(GetParam().second) != std::string::npos;
  EXPECT_EQ(said, 1u);
}
INSTANTIATE_TEST_SUITE_P(Machines, HostCopies,
                         ::testing::Values(std::pair{"no-htod", "Firn uses cuMemcpyAsync instead"},
                                           std::pair{"no-copies", "the CPU copies instead"}));

TEST(HostMemory, that_the_driver_does_not_have) {
  Setting setting("FIRN_GPU_HOST_NUMA", "none");
  Simulation sim(too_small_budget());
  expect_refused_and_whole(sim, "the driver lacks support");
}

TEST(HostMemory, that_the_driver_refuses) {
  Setting setting("FIRN_GPU_HOST_NUMA", "fail");
  Simulation sim(too_small_budget());
  expect_refused_and_whole(sim, "cuMemCreate of host memory");
}

TEST(HostMemoryDeathTest, a_driver_that_dies_of_it) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  Setting setting("FIRN_GPU_HOST_NUMA", "crash");
  EXPECT_EXIT(
      {
        try_host_apart();
        Simulation sim(too_small_budget());
        expect_refused_and_whole(sim, "crashed the trial process");
        std::_Exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(HostMemoryDeathTest, a_trial_that_goes_well_is_asked_once) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        try_host_apart();
        Simulation sim(too_small_budget());
        EXPECT_TRUE(try_host_memory(sim.driver().library, 0));
        ::setenv("FIRN_GPU_HOST_NUMA", "crash", 1);  // for a further trial
        EXPECT_TRUE(try_host_memory(sim.driver().library, 0));
        EXPECT_FALSE(try_host_memory(sim.driver().library, 1));
        std::_Exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

/// Out of memory of the device's is the program's out of memory, in words; not a driver's error.
void expect_short_device(const Error& error) {
  EXPECT_EQ(error.code, Code::out_of_memory) << describe(error);
  for (const char* words : {"the driver gave Firn only", "CUDA_ERROR_OUT_OF_MEMORY",
                            "less device memory used outside Firn"})
    EXPECT_NE(error.text.find(words), std::string::npos) << error.text;
}

TEST(ShortDevice, an_allocation_is_out_of_memory_in_words) {
  for (const size_t bytes : {6 * MiB, size_t{4096}}) {
    Simulation sim(too_small_budget());
    sim.gpu().fail_from("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    Result<void*> made = sim.engine(0).allocate(bytes, nullptr);
    ASSERT_FALSE(made);
    expect_short_device(made.error());
    sim.gpu().fail_at("cuMemCreate", 0, 0);
    EXPECT_TRUE(sim.engine(0).allocate(bytes, nullptr));  // others may have given some back
  }
}

TEST(ShortDevice, a_block_that_is_away_stays_there_or_is_used_in_host_memory) {
  Simulation sim(too_small_budget());
  Engine& engine = sim.engine(0);
  void* block = filled(sim, 1);
  engine.spill_all();
  while (engine.pump() || engine.busy()) sim.clock().wait(1'000'000);
  engine.trim();  // its frames are the device's again, which others take
  ASSERT_EQ(engine.stats().device_bytes, 0u);
  sim.gpu().fail_from("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  Result<Hold> hold = engine.touch(block, nullptr, Access::read);
  ASSERT_FALSE(hold);
  expect_short_device(hold.error());
  sim.gpu().fail_at("cuMemCreate", 0, 0);
  hold = engine.touch(block, nullptr, Access::read);
  ASSERT_TRUE(hold) << describe(hold.error());
  EXPECT_TRUE(sim.verify(0, block, 6 * MiB, 1, nullptr));
  engine.release(*hold, nullptr);
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u);
  engine.check();
}
