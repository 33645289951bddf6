// Spilling stopped for a while, and who is told of waits.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include "tests/allocator/heard.h"
#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {
constexpr size_t block_bytes = 6u << 20;

void use(Engine& engine, void* block, bool anyway = false) {
  Result<Hold> hold = engine.touch(block, nullptr, Access::write);
  if (!hold && anyway) hold = engine.touch_anyway(block, nullptr, Access::write);
  ASSERT_TRUE(hold) << describe(hold.error());
  engine.release(*hold, nullptr);
}
void* make(Engine& engine) {
  Result<void*> block = engine.allocate(block_bytes, nullptr);
  EXPECT_TRUE(block) << describe(block.error());
  use(engine, *block);
  return *block;
}
std::string state(Engine& engine, void* block) { return engine.find(block)->state; }
}  // namespace

TEST(Stop, nothing_leaves_and_what_does_not_fit_says_why) {
  Simulation sim(small_budget());
  Engine& engine = sim.engine(0);
  void *a = make(engine), *b = make(engine), *c = make(engine);
  engine.stop_spilling(true);
  engine.spill_all();
  EXPECT_TRUE(engine.cold(a, block_bytes));
  Result<void*> more = engine.allocate(block_bytes, nullptr);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, Code::out_of_memory);
  EXPECT_NE(more.error().text.find("firn.no_spill()"), std::string::npos) << more.error().text;
  for (void* block : {a, b, c}) EXPECT_EQ(state(engine, block), "resident");
  engine.stop_spilling(false);
  EXPECT_TRUE(engine.allocate(block_bytes, nullptr));
}

TEST(Stop, what_cannot_come_to_host_memory_is_away_as_before) {
  Simulation sim(small_budget());
  Engine& engine = sim.engine(0);
  void* a = make(engine);
  make(engine), make(engine), make(engine);  // a leaves
  engine.stop_spilling(true);
  sim.gpu().fail_from("cuMemcpyHtoDAsync", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(engine.touch_anyway(a, nullptr, Access::write));
  EXPECT_GE(engine.stats().zero_copy_bytes, block_bytes);
  EXPECT_NE(state(engine, a), "resident");
  engine.check();  // nothing of it counts as host memory at its addresses
  sim.gpu().fail_at("cuMemcpyHtoDAsync", 0, CUDA_SUCCESS);
  use(engine, a, true);
  sim.synchronize();
  engine.check();
}

// The block counts as one in host memory as long as a part of it is, and no longer.
TEST(Stop, a_part_in_host_memory_leaves_before_the_rest) {
  SimulationOptions options = small_budget();
  options.span_bytes = 2u << 20;
  Simulation sim(options);
  Engine& engine = sim.engine(0);
  void* a = make(engine);
  void* others[] = {make(engine), make(engine)};
  for (void* block : others) ASSERT_TRUE(engine.pin(block, "a test"));
  Result<void*> more = engine.allocate(2u << 20, nullptr);  // a third of a leaves
  ASSERT_TRUE(more) << describe(more.error());
  ASSERT_TRUE(engine.pin(*more, "a test"));
  ASSERT_NE(state(engine, a), "resident");
  Result<Hold> hold = engine.touch_anyway(a, nullptr, Access::read);
  ASSERT_TRUE(hold) << describe(hold.error());
  EXPECT_EQ(engine.stats().zero_copy_bytes, 2u << 20);
  engine.check();
  engine.release(*hold, nullptr);
  for (int round = 0; round < 100; ++round) {
    engine.check();
    engine.pump();
    sim.clock().wait(50'000);
  }
  EXPECT_NE(state(engine, a), "resident");
}

TEST(Stop, what_is_away_is_used_in_host_memory_where_there_is_no_room) {
  Simulation sim(small_budget());
  Engine& engine = sim.engine(0);
  void* a = make(engine);
  make(engine), make(engine);
  void* last = make(engine);  // a leaves
  ASSERT_NE(state(engine, a), "resident");
  engine.stop_spilling(true);
  const uint64_t evictions = engine.stats().evictions;
  EXPECT_FALSE(engine.touch(a, nullptr, Access::write));
  use(engine, a, true);
  EXPECT_EQ(engine.stats().evictions, evictions);
  EXPECT_GE(engine.stats().zero_copy_bytes, block_bytes);
  EXPECT_LE(sim.counts(0).frame_bytes_peak, 18u << 20);
  sim.synchronize();
  while (engine.pump()) sim.clock().wait(1'000'000);
  EXPECT_NE(state(engine, a), "resident");  // back to where it was
  ASSERT_TRUE(engine.pin(last, "a reason"));
  use(engine, a, true);
  EXPECT_EQ(engine.stats().zero_copy_touches, 2u);
  EXPECT_EQ(engine.stats().trouble.size(), 1u);  // said once, whatever else is pinned then
  sim.synchronize();
  while (engine.pump()) sim.clock().wait(1'000'000);
  ASSERT_TRUE(engine.unpin(last));
  engine.stop_spilling(false);
  use(engine, a);
  EXPECT_GT(engine.stats().evictions, evictions);
}

TEST(Stop, a_pin_waits_for_its_block_without_the_lock) {
  static unsigned synchronized;
  synchronized = 0;
  unsigned entered = 0;
  Engine* open = nullptr;
  SimulationOptions options = small_budget();
  options.on_wait = [&] {
    if (open) entered += open->stats().allocated_bytes > 0;
  };
  Simulation sim(options);
  Engine& engine = sim.engine(0);
  void* a = make(engine);
  engine.spill_all();
  ASSERT_NE(state(engine, a), "resident");
  sim.driver().event_synchronize = [](CUevent) {
    ++synchronized;
    return CUDA_SUCCESS;
  };
  open = &engine;
  ASSERT_TRUE(engine.pin(a, "a reason"));
  open = nullptr;
  EXPECT_EQ(synchronized, 0u);
  EXPECT_GT(entered, 0u);
  EXPECT_TRUE(engine.unpin(a));
}

TEST(Stop, what_was_leaving_stays) {
  Simulation sim(small_budget());
  Engine& engine = sim.engine(0);
  void* a = make(engine);
  sim.synchronize();
  ASSERT_TRUE(engine.cold(a, block_bytes));
  ASSERT_EQ(state(engine, a), "spilling");
  engine.stop_spilling(true);
  sim.synchronize();
  engine.pump();
  EXPECT_EQ(state(engine, a), "resident");
}

TEST(Stop, a_smaller_budget_does_not_wait_for_work_without_end) {
  Simulation sim(small_budget());
  Engine& engine = sim.engine(0);
  const CUstream stream = sim.make_stream(0);
  for (int i = 0; i < 2; ++i) {
    Result<void*> block = engine.allocate(block_bytes, stream);
    ASSERT_TRUE(block) << describe(block.error());
    Result<Hold> hold = engine.touch(*block, stream, Access::write);
    ASSERT_TRUE(hold) << describe(hold.error());
    Driver::ContextGuard context(sim.driver(), sim.context(0));
    if (i == 0) {
      ASSERT_EQ(sim.gpu().busy(stream, 3'600'000'000'000), 0);
    }
    engine.release(*hold, stream);
  }
  const uint64_t begin = sim.clock().now_ns();
  EXPECT_TRUE(engine.set_budget(4u << 20));
  EXPECT_LT(sim.clock().now_ns() - begin, 10'000'000'000u);
  ASSERT_EQ(engine.stats().trouble.size(), 1u);
  EXPECT_NE(engine.stats().trouble[0].find("still running"), std::string::npos);
  EXPECT_EQ(engine.stats().device_bytes, 12u << 20);
}

TEST(Stop, whoever_waits_is_told_for_how_long) {
  Simulation sim(small_budget());
  Engine& engine = sim.engine(0);
  uint64_t waits = 0, ns = 0;
  Heard heard;
  heard.on_wait = [&](const Wait& wait) {
    ++waits;
    ns += wait.ns;
    return nullptr;
  };
  engine.observe(&heard);
  void* a = make(engine);
  EXPECT_EQ(waits, 0u);
  make(engine), make(engine), make(engine);
  use(engine, a);
  EXPECT_GT(waits, 0u);
  EXPECT_EQ(waits, engine.stats().stalls);
  EXPECT_EQ(ns, engine.stats().stall_ns);
}

/// Host memory takes what it can when everything is sent away, and then says that eviction stops.
/// That was this once: what is on the device and there as well still makes room later.
TEST(Stop, sending_everything_away_does_not_stop_eviction_for_good) {
  SimulationOptions options = small_budget();
  options.budget_bytes = 48u << 20;
  options.host_bytes = 32u << 20;
  options.with_store = false;
  Simulation sim(options);
  Engine& engine = sim.engine(0);
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(make(engine));
  engine.spill_away();
  const EngineStats away = engine.stats();
  EXPECT_GT(away.hosted_bytes, 2 * block_bytes);
  ASSERT_FALSE(away.trouble.empty()) << "host memory took everything";
  for (void* block : blocks) {  // as weights are: only read
    Result<Hold> hold = engine.touch(block, nullptr, Access::read);
    ASSERT_TRUE(hold) << describe(hold.error());
    engine.release(*hold, nullptr);
  }
  make(engine), make(engine);
}

/// Also where a job filled host memory and the disk: a block that was only read leaves uncopied.
TEST(Stop, what_is_on_the_disk_as_well_leaves_though_eviction_has_stopped) {
  SimulationOptions options = small_budget();
  options.host_bytes = 24u << 20;
  options.store.capacity_bytes = 2 * block_bytes;
  Simulation sim(options);
  Engine& engine = sim.engine(0);
  std::vector<void*> blocks;
  const auto fill = [&] {
    while (Result<void*> block = engine.allocate(block_bytes, nullptr)) {
      use(engine, *block);
      blocks.push_back(*block);
    }
  };
  const auto one = [&](const char* where) {
    const auto found = std::find_if(blocks.begin(), blocks.end(), [&](void* block) {
      return state(engine, block) == where;
    });
    EXPECT_NE(found, blocks.end()) << where;
    return found == blocks.end() ? nullptr : *found;
  };
  fill();
  ASSERT_FALSE(engine.stats().trouble.empty()) << "host memory took everything";
  void* const away = one("spilled");
  void* const there = one("resident");
  ASSERT_TRUE(away && there);
  ASSERT_TRUE(engine.free(there));
  std::erase(blocks, there);
  Result<Hold> hold = engine.touch(away, nullptr, Access::read);
  ASSERT_TRUE(hold) << describe(hold.error());
  engine.release(*hold, nullptr);
  ASSERT_EQ(state(engine, away), "resident");
  fill();
  EXPECT_NE(state(engine, away), "resident");
  sim.synchronize();
  engine.check();
}

/// Two threads that wait for each other. While either is at work the virtual clock stands, which
/// would otherwise pass by the seconds while the kernel lets only the other one run.
class InStep {
 public:
  SimulationOptions options() {
    SimulationOptions made = small_budget();
    made.on_wait = [this] {
      if (taking_part) step_.arrive_and_wait();
    };
    return made;
  }
  void begin() { taking_part = true; }
  void end() {
    taking_part = false;
    step_.arrive_and_drop();
  }

 private:
  static thread_local bool taking_part;
  std::barrier<> step_{2};
};
thread_local bool InStep::taking_part = false;

// Each operator fits by itself: of threads that wait for what they hold from each other one goes on
// in host memory, and what it releases is the others'.
TEST(Stop, threads_that_starve_each_other_go_on) {
  InStep step;
  Simulation sim(step.options());
  Engine& engine = sim.engine(0);
  void* inputs[] = {make(engine), make(engine)};
  const uint64_t begin = sim.clock().now_ns();
  std::atomic<int> holding{0}, done{0};
  std::vector<std::thread> threads;
  for (void* input : inputs)
    threads.emplace_back([&, input] {
      Result<Hold> hold = engine.touch(input, nullptr, Access::read);
      EXPECT_TRUE(hold) << describe(hold.error());
      ++holding;
      while (holding < 2) std::this_thread::yield();
      step.begin();
      Result<void*> output = engine.allocate(8u << 20, nullptr);
      step.end();
      EXPECT_TRUE(output) << describe(output.error());
      if (hold) engine.release(*hold, nullptr);
      if (output) {
        EXPECT_TRUE(engine.free(*output));
        ++done;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, 2);
  EXPECT_LT(sim.clock().now_ns() - begin, 1'000'000'000u);
  EXPECT_GT(engine.stats().zero_copy_bytes, 0u);
  sim.synchronize();
  engine.check();
}

// Small blocks cannot go on in host memory. Where nobody else waits who can, one thread has an error
// at once, and what it releases is the others'; seen by four threads of a random program, each of
// which waited ten seconds for every small tensor.
TEST(Stop, threads_that_starve_each_other_of_small_blocks_go_on) {
  InStep step;
  Simulation sim(step.options());
  Engine& engine = sim.engine(0);
  void* inputs[] = {make(engine), make(engine)};
  const uint64_t begin = sim.clock().now_ns();
  std::atomic<int> holding{0}, refused{0};
  std::vector<std::thread> threads;
  for (void* input : inputs)
    threads.emplace_back([&, input] {
      Result<Hold> hold = engine.touch(input, nullptr, Access::read);
      EXPECT_TRUE(hold) << describe(hold.error());
      ++holding;
      while (holding < 2) std::this_thread::yield();
      std::vector<void*> made;
      step.begin();
      for (;;) {
        Result<void*> output = engine.allocate(512u << 10, nullptr);
        if (!output) break;
        made.push_back(*output);
      }
      step.end();
      ++refused;
      if (hold) engine.release(*hold, nullptr);
      for (void* each : made) EXPECT_TRUE(engine.free(each));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 2);
  EXPECT_LT(sim.clock().now_ns() - begin, 1'000'000'000u);
  sim.synchronize();
  engine.check();
}

// As `firn spill` asks for it: in a thread that has no context of its own.
TEST(Stop, spilling_away_needs_no_context_of_the_caller) {
  SimulationOptions options = small_budget();
  options.policy = Policy::lifetime;
  options.greedy = true;
  Simulation sim(options);
  Engine& engine = sim.engine(0);
  void *a = make(engine), *b = make(engine);
  for (int i = 0; i < 4; ++i) use(engine, a), use(engine, b);
  engine.spill_away();
  EXPECT_NE(state(engine, a), "resident");
  use(engine, a);
  EXPECT_EQ(state(engine, a), "resident");
}

// Nor does the engine's end, which gives back what it had pinned.
TEST(Stop, at_the_end_no_host_memory_stays_registered) {
  auto sim = std::make_unique<Simulation>(small_budget());
  make(sim->engine(0));
  sim->engine(0).spill_all();
  const GpuControls gpu = sim->gpu();
  FirnGpuCounts counts{};
  ASSERT_EQ(gpu.counts(0, &counts), 0);
  EXPECT_GT(counts.host_registered_bytes, 0u);
  sim.reset();
  ASSERT_EQ(gpu.counts(0, &counts), 0);
  EXPECT_EQ(counts.host_registered_bytes, 0u);
}

// The software GPU aborts where memory is unmapped under a kernel, or addresses are given back that
// something is mapped at.
TEST(Stop, an_end_that_is_refused_something_leaves_what_is_in_use) {
  for (const char* entry : {"cuCtxSynchronize", "cuMemUnmap"})
    for (const bool for_good : {false, true}) {
      auto sim = std::make_unique<Simulation>(small_budget());
      CUstream stream = sim->make_stream(0);
      void* block = make(sim->engine(0));
      const GpuControls gpu = sim->gpu();
      ASSERT_EQ(gpu.busy(stream, 50'000'000), 0);
      Result<Hold> hold = sim->engine(0).touch(block, stream, Access::write);
      ASSERT_TRUE(hold);
      ASSERT_TRUE(sim->fill(0, block, block_bytes, 1, stream));
      sim->engine(0).release(*hold, stream);
      (for_good ? gpu.fail_from : gpu.fail_at)(entry, 1, CUDA_ERROR_UNKNOWN);
      sim->end_engine(0);
      gpu.fail_at(entry, 0, 0);
      FirnGpuCounts counts{};
      ASSERT_EQ(gpu.counts(0, &counts), 0);
      EXPECT_EQ(counts.frame_bytes > 0, for_good) << entry;
    }
}
