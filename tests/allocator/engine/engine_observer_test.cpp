// An observer learns of memory and of waits, outside of the engine's lock, and hinders nobody.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <new>
#include <thread>
#include <vector>

#include "tests/allocator/heard.h"
#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {
void* make(Engine& engine, size_t bytes) {
  Result<void*> block = engine.allocate(bytes, nullptr);
  EXPECT_TRUE(block) << describe(block.error());
  return block ? *block : nullptr;
}
}  // namespace

TEST(EngineObserver, memory_events_tell_of_segments_and_of_frees_that_waited) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  std::vector<MemoryEvent> events;
  Heard heard;
  heard.on_memory = [&](const MemoryEvent& event) { events.push_back(event); };
  engine.observe(&heard);
  void* block = make(engine, 3u << 20);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, MemoryEvent::Kind::segment_made);
  EXPECT_EQ(events[0].address, block);
  EXPECT_EQ(events[0].bytes, 3u << 20);
  ASSERT_TRUE(engine.record_stream(block, sim.make_stream(0)));
  EXPECT_TRUE(engine.find(block)->recorded);
  ASSERT_TRUE(engine.free(block));
  EXPECT_EQ(engine.tallies().active[0].current, 1);
  EXPECT_EQ(engine.tallies().allocation[0].current, 0);
  engine.trim();
  EXPECT_EQ(engine.tallies().active[0].current, 0);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].kind, MemoryEvent::Kind::free_completed);
  EXPECT_EQ(events[2].kind, MemoryEvent::Kind::segment_given);
  engine.observe(nullptr);
}

/// Called with the lock held, it would wait for itself.
TEST(EngineObserver, an_observer_may_call_the_engine) {
  SimulationOptions options;
  options.budget_bytes = 16u << 20;
  options.watch_fraction = 0;
  Simulation sim(options);
  Engine& engine = sim.engine(0);
  Heard heard;
  std::vector<uint64_t> made;
  heard.on_memory = [&](const MemoryEvent& event) {
    if (event.kind != MemoryEvent::Kind::segment_made) return;
    made.push_back(event.bytes);
    if (event.bytes == 3u << 20) {
      EXPECT_TRUE(engine.free(make(engine, 2u << 20)));
    }
  };
  unsigned waits = 0;
  heard.on_wait = [&](const Wait&) {
    waits += engine.stats().stalls > 0;
    return nullptr;
  };
  engine.observe(&heard);
  void* block = make(engine, 3u << 20);
  EXPECT_EQ(made, (std::vector<uint64_t>{3u << 20, 2u << 20}));
  for (int i = 0; i < 4; ++i) {  // more than there is room for
    void* another = make(engine, 4u << 20);
    Result<Hold> hold = engine.touch(another, nullptr, Access::write);
    ASSERT_TRUE(hold);
    engine.release(*hold, nullptr);
  }
  Result<Hold> hold = engine.touch(block, nullptr, Access::read);
  ASSERT_TRUE(hold) << describe(hold.error());
  engine.release(*hold, nullptr);
  EXPECT_GT(waits, 0u);
  engine.observe(nullptr);
}

TEST(EngineObserver, one_that_throws_misses_that_and_hinders_nobody) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  Heard heard;
  unsigned events = 0;
  heard.on_memory = [&](const MemoryEvent&) {
    if (events++ == 0) throw std::bad_alloc();
  };
  engine.observe(&heard);
  ::alarm(20);  // a thread that waits for the report that was thrown out of is ended
  make(engine, 3u << 20);
  EXPECT_EQ(events, 1u);
  std::thread([&] { make(engine, 5u << 20); }).join();
  EXPECT_EQ(events, 2u);
  ::alarm(0);
  engine.observe(nullptr);
}

namespace {
struct Freed {
  Engine* engine;
  void* block;
  bool over = false;
};
}  // namespace

/// The observer waits for the callback's end, as the holder of the engine's lock may.
TEST(EngineObserver, a_callback_of_the_drivers_frees_while_events_are_reported) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  const CUstream stream = sim.make_stream(0);
  using HostFunction = CUresult (*)(CUstream, void (*)(void*), void*);
  const auto host_function =
      reinterpret_cast<HostFunction>(::dlsym(sim.driver().handle, "cuLaunchHostFunc"));
  ASSERT_NE(host_function, nullptr);
  Freed last{&engine, make(engine, 2u << 20)};
  ASSERT_TRUE(engine.pin(last.block, "a test"));  // its end takes more than a push
  Heard heard;
  const auto free_behind_the_stream = [&] {  // (The callback runs in the thread that waits for it.)
    Driver::ContextGuard context(sim.driver(), sim.context(0));
    ASSERT_EQ(host_function(stream, [](void* data) {
      auto& freed = *static_cast<Freed*>(data);
      freed.over = bool(freed.engine->free(freed.block));
    }, &last), CUDA_SUCCESS);
    ASSERT_EQ(sim.driver().stream_synchronize(stream), CUDA_SUCCESS);
  };
  heard.on_memory = [&](const MemoryEvent&) { std::thread(free_behind_the_stream).join(); };
  engine.observe(&heard);
  ::alarm(20);
  make(engine, 3u << 20);
  ::alarm(0);
  EXPECT_TRUE(last.over);
  engine.observe(nullptr);
}
