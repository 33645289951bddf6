// Streams as programs have them: under capture while memory is short, thousands of them, gone, each
// thread's own; and frees where the driver may not be called.
#include <gtest/gtest.h>

#include <vector>

#include "tests/allocator/capture.h"
#include "tests/allocator/engine/watched.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr size_t MiB = 1u << 20;

SimulationOptions budget_16mib() {
  SimulationOptions o;
  o.budget_bytes = 16 * MiB;
  o.host_bytes = 32 * MiB;
  o.span_bytes = 2 * MiB;
  return o;
}

/// Entries that Firn itself has no use for.
struct Program {
  explicit Program(Simulation& sim) {
    load(host_function, sim, "cuLaunchHostFunc");
  }
  CUresult (*host_function)(CUstream, void (*)(void*), void*) = nullptr;

 private:
  template <class T>
  static void load(T& entry, Simulation& sim, const char* name) {
    entry = reinterpret_cast<T>(::dlsym(sim.driver().handle, name));
    ASSERT_NE(entry, nullptr) << name;
  }
};

void use(Engine& engine, void* block, CUstream stream, Access access = Access::write) {
  Result<Hold> hold = engine.touch(block, stream, access);
  ASSERT_TRUE(hold) << describe(hold.error());
  engine.release(*hold, stream);
}

void* make(Engine& engine, size_t bytes, CUstream stream) {
  Result<void*> made = engine.allocate(bytes, stream);
  EXPECT_TRUE(made) << describe(made.error());
  return made ? *made : nullptr;
}

}  // namespace

TEST(EngineCapture, what_a_captured_stream_used_is_not_waited_for) {
  Watched sim(budget_16mib());
  Engine& engine = sim->engine(0);
  const CUstream stream = sim->make_stream(0);
  void* freed = make(engine, 12 * MiB, stream);
  use(engine, freed, stream);
  ASSERT_TRUE(engine.free(freed));
  Capture capture(*sim, stream);
  sim.watch("an allocation while the stream is captured");
  Result<void*> more = engine.allocate(10 * MiB, nullptr);
  ASSERT_FALSE(more) << "nothing can make room before the capture's end";
  EXPECT_EQ(more.error().code, Code::out_of_memory);
  sim.watch("calls of a program that catches that");
  engine.trim();
  EXPECT_TRUE(engine.set_budget(12 * MiB));
  EXPECT_TRUE(engine.set_budget(16 * MiB));
  EXPECT_EQ(capture.end(), CUDA_SUCCESS) << "the capture is whole";
  EXPECT_TRUE(engine.allocate(10 * MiB, nullptr));
}

TEST(EngineCapture, a_block_that_a_captured_stream_used_stays_and_others_leave) {
  Watched sim(budget_16mib());
  Engine& engine = sim->engine(0);
  const CUstream stream = sim->make_stream(0);
  void* used = make(engine, 6 * MiB, stream);
  use(engine, used, stream);
  void* other = make(engine, 6 * MiB, nullptr);
  use(engine, other, nullptr);
  Capture capture(*sim, stream);
  sim.watch("allocations while the stream is captured");
  void* more = make(engine, 6 * MiB, nullptr);
  EXPECT_STREQ(engine.find(used)->state, "resident");
  EXPECT_STRNE(engine.find(other)->state, "resident");
  use(engine, more, nullptr);
  use(engine, other, nullptr);
  EXPECT_EQ(capture.end(), CUDA_SUCCESS);
  sim.watch("everything, after the capture");
  for (void* block : {used, other, more}) use(engine, block, stream, Access::read);
}

/// The driver refuses to be asked about the default stream then.
TEST(EngineCapture, the_default_stream_while_a_blocking_one_is_captured) {
  for (const bool freed : {false, true}) {
    Watched sim(budget_16mib());
    Engine& engine = sim->engine(0);
    CUstream blocking = nullptr;
    {
      Driver::ContextGuard context(sim->driver(), sim->context(0));
      ASSERT_EQ(sim->driver().stream_create(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
    }
    void* block = make(engine, 12 * MiB, nullptr);
    use(engine, block, nullptr);
    if (freed) {
      ASSERT_TRUE(engine.free(block));
    }
    Capture capture(*sim, blocking);
    for (int i = 0; i < 5; ++i) {
      sim.watch("an allocation while the stream is captured");
      Result<void*> more = engine.allocate(10 * MiB, blocking);
      ASSERT_FALSE(more) << "nothing can make room before the capture's end";
      EXPECT_EQ(more.error().code, Code::out_of_memory) << describe(more.error());
      engine.pump();
      sim->clock().wait(second / 2);  // long enough for a device to be given up
    }
    for (const std::string& said : engine.stats().trouble)
      EXPECT_EQ(said.find("CUDA_ERROR"), std::string::npos) << "it is no trouble: " << said;
    sim.watch("its end, and everything after");
    EXPECT_EQ(capture.end(), CUDA_SUCCESS) << "the capture is whole";
    EXPECT_TRUE(engine.free(make(engine, 10 * MiB, blocking))) << "the device is none the worse";
    if (!freed) use(engine, block, nullptr, Access::read);
    engine.check();
  }
}

TEST(EngineCapture, work_of_streams_that_may_have_ended_is_not_waited_for) {
  Watched sim(budget_16mib());
  Engine& engine = sim->engine(0);
  const CUstream captured = sim->make_stream(0), gone = sim->make_stream(0);
  use(engine, make(engine, 2 * MiB, captured), captured);
  void* block = make(engine, 10 * MiB, gone);
  use(engine, block, gone);
  engine.may_end(gone);
  Capture capture(*sim, captured);
  sim.watch("an allocation that would have to wait for the whole device");
  EXPECT_FALSE(engine.allocate(10 * MiB, nullptr));
  EXPECT_EQ(capture.end(), CUDA_SUCCESS) << "a wait for the device would have spoilt it";
  EXPECT_TRUE(engine.allocate(10 * MiB, nullptr));
}

TEST(EngineStreams, ten_thousand_come_and_go) {
  Watched sim(budget_16mib());
  Engine& engine = sim->engine(0);
  void* block = make(engine, 2 * MiB, nullptr);
  Driver::ContextGuard context(sim->driver(), sim->context(0));
  for (int i = 0; i < 10'000; ++i) {
    CUstream stream = nullptr;
    ASSERT_EQ(sim->driver().stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    use(engine, block, stream);
    if (i % 100 == 0) {
      EXPECT_TRUE(engine.free(make(engine, 2 * MiB, stream)));
    }
    engine.stream_ends(stream);
    ASSERT_EQ(sim->driver().stream_destroy(stream), CUDA_SUCCESS);
    if (i % 16 == 0) engine.pump();
  }
  EXPECT_TRUE(engine.stats().trouble.empty());
  engine.spill_all();  // its uses are over, whichever streams they were on
  EXPECT_STRNE(engine.find(block)->state, "resident");
  engine.check();
}

TEST(EngineStreams, five_thousand_at_once_are_no_abort) {
  Watched sim(budget_16mib());
  Engine& engine = sim->engine(0);
  void* block = make(engine, 2 * MiB, nullptr);
  Driver::ContextGuard context(sim->driver(), sim->context(0));
  std::vector<CUstream> streams(5'000);
  for (CUstream& stream : streams)
    ASSERT_EQ(sim->driver().stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  unsigned refused = 0;
  for (CUstream stream : streams) {
    Result<Hold> hold = engine.touch(block, stream, Access::read);
    ASSERT_TRUE(hold);
    engine.release(*hold, stream);  // its work is waited for where it has no place
  }
  for (size_t i = 4'100; i < streams.size(); ++i) {
    Result<void*> made = engine.allocate(1000, streams[i]);
    ASSERT_FALSE(made);
    EXPECT_NE(made.error().text.find("more than 4096 streams"), std::string::npos);
    ++refused;
  }
  EXPECT_EQ(refused, 900u);
  ASSERT_EQ(engine.stats().trouble.size(), 1u);
  EXPECT_NE(engine.stats().trouble[0].find("more than 4096 streams"), std::string::npos);
  for (CUstream stream : streams) {
    engine.stream_ends(stream);
    ASSERT_EQ(sim->driver().stream_destroy(stream), CUDA_SUCCESS);
  }
}

TEST(EngineStreams, each_threads_own_default_stream_is_behind_the_default_stream) {
  Watched sim(budget_16mib());
  Engine& engine = sim->engine(0);
  void* block = make(engine, 6 * MiB, CU_STREAM_PER_THREAD);
  {
    Driver::ContextGuard context(sim->driver(), sim->context(0));
    Result<Hold> hold = engine.touch(block, CU_STREAM_PER_THREAD, Access::write);
    ASSERT_TRUE(hold);
    ASSERT_EQ(sim->gpu().busy(CU_STREAM_PER_THREAD, second / 2), 0);
    ASSERT_TRUE(sim->fill(0, block, 6 * MiB, 7, CU_STREAM_PER_THREAD));
    engine.release(*hold, CU_STREAM_PER_THREAD);
  }
  EXPECT_EQ(engine.find(block)->stream, nullptr);
  engine.spill_all();  // not before the kernel's end
  EXPECT_GE(sim->clock().now_ns(), second / 2);
  Result<Hold> hold = engine.touch(block, nullptr, Access::read);
  ASSERT_TRUE(hold);
  ASSERT_TRUE(sim->verify(0, block, 6 * MiB, 7, nullptr));
  engine.release(*hold, nullptr);
  sim->synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
}

namespace {
struct LastReference {
  Engine* engine;
  std::vector<void*> blocks;
  bool freed = true;
};
void free_them(void* data) {
  auto& last = *static_cast<LastReference*>(data);
  for (void* block : last.blocks) last.freed &= static_cast<bool>(last.engine->free(block));
}
}  // namespace

TEST(EngineStreams, a_callback_of_the_drivers_may_free) {
  Watched sim(budget_16mib());
  Engine& engine = sim->engine(0);
  const CUstream other = sim->make_stream(0);
  void* recorded = make(engine, 2 * MiB, nullptr);
  ASSERT_TRUE(engine.record_stream(recorded, other, nullptr));
  void* pinned = make(engine, 2 * MiB, nullptr);
  ASSERT_TRUE(engine.pin(pinned, "a test"));
  void* away = make(engine, 4 * MiB, nullptr);
  use(engine, away, other);
  engine.spill_all();
  LastReference last{&engine, {recorded, pinned, away, make(engine, 1000, nullptr)}};
  {
    Driver::ContextGuard context(sim->driver(), sim->context(0));
    ASSERT_EQ(Program(*sim).host_function(other, free_them, &last), CUDA_SUCCESS);
    ASSERT_EQ(sim->driver().stream_synchronize(other), CUDA_SUCCESS);
  }
  EXPECT_TRUE(last.freed);
  EXPECT_FALSE(engine.free(pinned)) << "freed before";
  sim.watch("the rest of their ends");
  while (engine.pump() || engine.busy()) sim->clock().wait(1'000'000);
  for (void* block : {recorded, pinned, away}) EXPECT_FALSE(engine.find(block));
  EXPECT_TRUE(engine.allocate(14 * MiB, nullptr)) << "their memory is there again";
  engine.check();
}

// Work on a recorded stream is told to nobody until the block is freed.
TEST(EngineStreams, what_a_recorded_stream_does_is_over_before_the_block_leaves) {
  Simulation sim(budget_16mib());
  Engine& engine = sim.engine(0);
  CUstream side = sim.make_stream(0);
  void* block = make(engine, 6 * MiB, nullptr);
  use(engine, block, nullptr);
  ASSERT_TRUE(sim.fill(0, block, 6 * MiB, 1, nullptr));
  ASSERT_TRUE(engine.record_stream(block, side));
  sim.synchronize();
  {
    Driver::ContextGuard context(sim.driver(), sim.context(0));
    ASSERT_EQ(sim.gpu().busy(side, 1'000'000'000), 0);
  }
  ASSERT_TRUE(sim.fill(0, block, 6 * MiB, 7, side));  // nobody is told
  ASSERT_TRUE(engine.cold(block, 6 * MiB));
  for (int i = 0; i < 20; ++i) {
    (void)engine.pump();
    sim.clock().wait(1'000'000);
  }
  EXPECT_STREQ(engine.find(block)->state, "spilling");
  sim.synchronize();
  while (engine.pump() || engine.busy()) sim.clock().wait(1'000'000);
  EXPECT_STRNE(engine.find(block)->state, "resident");
  use(engine, block, nullptr, Access::read);
  ASSERT_TRUE(sim.verify(0, block, 6 * MiB, 7, nullptr));
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
  engine.check();
}
