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

/// Little host memory, in front of a store that spoils what it is told to.
SimulationOptions spoiling(RefusingStore*& store) {
  SimulationOptions options = budget_18mib();
  options.host_bytes = 12 * MiB;
  options.in_front_of_store = [&store](Store& behind) {
    auto made = std::make_unique<RefusingStore>(behind);
    store = made.get();
    return made;
  };
  return options;
}

struct Freed {
  Engine* engine;
  void* block;
};

}  // namespace

TEST(EngineRecipesRare, under_capture_it_is_made_on_firn_s_own_stream) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const CUstream stream = sim.make_stream(0);
  const auto [in, out, recipe] = program.drop_one();
  Capture capture(sim, stream);
  Result<Hold> hold = program.engine().touch(out, stream, Access::read);
  ASSERT_TRUE(hold) << describe(hold.error());
  EXPECT_NE(program.last_stream, stream);
  program.engine().release(*hold, stream);
  EXPECT_EQ(capture.end(), CUDA_SUCCESS) << "the capture is whole";
  program.read(out, stream);
  program.settle();
}

// A graph knows nothing of its stream's work before the capture.
TEST(EngineRecipesRare, a_capture_waits_for_what_was_made_on_its_own_stream_before) {
  for (const bool writes_input : {false, true}) {
    Simulation sim(budget_18mib());
    RemakingProgram program(sim);
    const CUstream stream = sim.make_stream(0);
    const auto [in, out, recipe] = program.drop_one();
    ASSERT_EQ(sim.gpu().busy(stream, 5'000'000), 0);
    program.read(out, stream);
    const uint64_t begin = sim.clock().now_ns();
    Capture capture(sim, stream);
    Result<Hold> hold = writes_input ? program.engine().touch(in, stream, Access::write)
                                     : program.engine().touch(out, stream, Access::read);
    ASSERT_TRUE(hold) << describe(hold.error());
    EXPECT_GE(sim.clock().now_ns() - begin, 3'000'000u) << writes_input;
    program.engine().release(*hold, stream);
    EXPECT_EQ(capture.end(), CUDA_SUCCESS);
    program.settle();
  }
}

TEST(EngineRecipesRare, a_capture_that_begins_while_its_inputs_come_gets_nothing_of_it) {
  SimulationOptions options = budget_18mib();
  std::function<void()> once;
  options.on_wait = [&once] {
    if (auto act = std::exchange(once, nullptr)) act();
  };
  Simulation sim(options);
  RemakingProgram program(sim);
  const CUstream stream = sim.make_stream(0);
  const auto [in, out, recipe] = program.drop_one();
  (void)program.engine().pump();  // (Its frames are unmapped, so that it is made in one go.)
  for (int i = 0; i < 4; ++i)     // (The input has to wait until these leave.)
    program.write(program.make(4 * MiB), 10 + i);
  std::optional<Capture> capture;
  once = [&] { capture.emplace(sim, stream); };
  Result<Hold> hold = program.engine().touch(out, stream, Access::read);
  ASSERT_TRUE(hold) << describe(hold.error());
  ASSERT_TRUE(capture);
  EXPECT_NE(program.last_stream, stream);
  program.engine().release(*hold, stream);
  EXPECT_EQ(capture->end(), CUDA_SUCCESS);
  program.read(out, stream);
  program.settle();
}

TEST(EngineRecipesRare, a_capture_that_begins_behind_a_read_of_an_input_holds_up_nobody) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const CUstream one = sim.make_stream(0), home = sim.make_stream(0);
  void* in = program.make(4 * MiB, home);
  void* out = program.make(4 * MiB);
  program.write(in, 1, home);
  sim.synchronize();
  program.run(out, {in});
  program.away(out);
  program.read(out, one);
  Capture capture(sim, one);
  program.free(in);
  for (int i = 0; i < 100; ++i) {
    (void)program.engine().pump();
    sim.clock().wait(100'000);
  }
  ASSERT_EQ(program.make(4 * MiB, home), in) << "its reads are over";
  program.read(out, home);
  EXPECT_EQ(capture.end(), CUDA_SUCCESS);
  program.settle();
}

TEST(EngineRecipesRare, freed_in_a_callback_while_it_is_about_to_be_made_again) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const auto [first, middle, last] = program.make_row();
  program.run(middle, {first});
  program.run(last, {middle});
  program.away(last);
  using HostFunction = CUresult (*)(CUstream, void (*)(void*), void*);
  const auto host_function =
      reinterpret_cast<HostFunction>(::dlsym(sim.driver().handle, "cuLaunchHostFunc"));
  Freed freed{&program.engine(), middle};
  {
    Driver::ContextGuard context(sim.driver(), sim.context(0));
    const auto free_it = [](void* of) {
      EXPECT_TRUE(static_cast<Freed*>(of)->engine->free(static_cast<Freed*>(of)->block));
    };
    ASSERT_EQ(host_function(nullptr, free_it, &freed), CUDA_SUCCESS);
    ASSERT_EQ(sim.driver().stream_synchronize(nullptr), CUDA_SUCCESS);
  }
  EXPECT_EQ(program.state(middle), "gone");
  program.during = [&](uint64_t) {
    EXPECT_TRUE(program.engine().free(last));
    (void)program.engine().pump();
  };
  program.write(first, 2);
  program.during = nullptr;
  EXPECT_EQ(program.made.size(), 1u);
  program.free(first);
  program.settle();
  program.engine().trim();
  program.engine().check();
  EXPECT_EQ(sim.counts(0).frame_bytes, 0u);
}

TEST(EngineRecipesRare, freed_when_the_device_died_while_it_was_made_again) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const auto [in, out, recipe] = program.drop_one();
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

TEST(EngineRecipesRare, what_is_on_the_device_outlives_an_input_that_is_lost) {
  for (const size_t bytes : {4 * MiB, MiB / 16}) {
    RefusingStore* store = nullptr;
    Simulation sim(spoiling(store));
    RemakingProgram program(sim);
    void* in = program.make(bytes);
    void* out = program.make(4 * MiB);
    program.write(in, 1);
    program.run(out, {in});
    Result<Hold> hold = program.engine().touch(out, nullptr, Access::read);
    for (int i = 0; i < 8; ++i)  // all host memory is taken
      program.write(program.make(4 * MiB), 10 + i);
    program.engine().spill_all();
    ASSERT_EQ(program.state(in), "spilled");
    store->reads_spoilt = 100;
    Result<void> read = program.try_read(in);
    ASSERT_FALSE(read);
    EXPECT_EQ(program.state(in), "lost");
    store->reads_spoilt = 0;
    EXPECT_EQ(program.engine().stats().recipes, 0u);
    program.engine().release(*hold, nullptr);
    program.engine().spill_all();
    EXPECT_NE(program.state(out), "dropped");
    program.read(out);
    EXPECT_TRUE(program.made.empty());
    program.settle();
  }
}

TEST(EngineRecipesRare, what_is_made_from_a_lost_block_is_lost) {
  RefusingStore* store = nullptr;
  Simulation sim(spoiling(store));
  RemakingProgram program(sim);
  void* in = program.make(4 * MiB);
  void* beside = program.make(4 * MiB);
  void* out = program.make(4 * MiB);
  program.write(in, 1), program.write(beside, 2);
  program.run(out, {in, beside});
  program.away(out);
  for (int i = 0; i < 8; ++i)  // all host memory is taken
    program.write(program.make(4 * MiB), 10 + i);
  program.engine().spill_all();
  ASSERT_EQ(program.state(in), "spilled");
  store->reads_spoilt = 100;
  Result<void> read = program.try_read(out);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::lost);
  EXPECT_EQ(program.state(out), "lost");
  EXPECT_EQ(program.state(in), "lost");
  EXPECT_EQ(program.engine().stats().lost_blocks, 2u);
  EXPECT_EQ(program.engine().stats().recipes, 0u);
  store->reads_spoilt = 0;
  program.write(beside, 3);  // it holds up nobody
  program.engine().check();
}
