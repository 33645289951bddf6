// The device is waited for without the engine's lock: other threads go on meanwhile.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <vector>

#include "tests/allocator/capture.h"
#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr size_t block_bytes = 6u << 20;
constexpr uint64_t copy_ns = 100'000;  // a block takes longer over the link

/// Counts the driver's waits, and those in which another thread cannot call the engine.
struct Waits {
  explicit Waits(Simulation& sim) : engine(&sim.engine(0)), driver(sim.driver()) {
    current = this;
    event_wait = std::exchange(driver.event_synchronize, [](CUevent event) {
      current->begins();
      return current->event_wait(event);
    });
    stream_wait = std::exchange(driver.stream_synchronize, [](CUstream stream) {
      current->begins();
      return current->stream_wait(stream);
    });
    device_wait = std::exchange(driver.ctx_synchronize, [] {
      current->begins();
      return current->device_wait();
    });
  }
  ~Waits() {
    driver.event_synchronize = event_wait;
    driver.stream_synchronize = stream_wait;
    driver.ctx_synchronize = device_wait;
    current = nullptr;
  }
  void begins() {
    ++waits;
    auto asked = std::async(std::launch::async, [this] { return engine->stats().faults; });
    if (asked.wait_for(std::chrono::seconds(2)) == std::future_status::ready) return;
    ++locked;
    left.push_back(std::move(asked));  // answered when the lock is given back
  }

  static inline Waits* current = nullptr;
  Engine* engine;
  Driver& driver;
  decltype(Driver::event_synchronize) event_wait;
  decltype(Driver::stream_synchronize) stream_wait;
  decltype(Driver::ctx_synchronize) device_wait;
  unsigned waits = 0, locked = 0;
  std::vector<std::future<uint64_t>> left;
};

void use(Engine& engine, void* block, CUstream stream, Access access) {
  Result<Hold> hold = engine.touch(block, stream, access);
  ASSERT_TRUE(hold) << describe(hold.error());
  engine.release(*hold, stream);
}
void* make(Engine& engine, CUstream stream) {
  Result<void*> block = engine.allocate(block_bytes, stream);
  EXPECT_TRUE(block) << describe(block.error());
  if (!block) return nullptr;
  use(engine, *block, stream, Access::write);
  return *block;
}

struct UnlockedWaits : testing::Test {
  Simulation sim{small_budget()};
  Engine& engine = sim.engine(0);
  Driver::ContextGuard guard{sim.driver(), sim.context(0)};

  void settle() {
    sim.synchronize();
    while (engine.pump()) sim.clock().wait(1'000'000);
  }
};

}  // namespace

TEST_F(UnlockedWaits, a_use_in_a_capture_waits_for_what_arrives) {
  const CUstream stream = sim.make_stream(0);
  void* a = make(engine, stream);
  settle();
  engine.spill_all();
  ASSERT_STRNE(engine.find(a)->state, "resident");
  Waits waits(sim);
  Capture capture(sim, stream);
  const uint64_t begin = sim.clock().now_ns();
  use(engine, a, stream, Access::read);
  EXPECT_GE(sim.clock().now_ns(), begin + copy_ns) << "no graph waits: the bytes have to be there";
  EXPECT_EQ(capture.end(), CUDA_SUCCESS) << "the capture is whole";
  EXPECT_EQ(waits.locked, 0u) << "of " << waits.waits << " waits";
}

TEST_F(UnlockedWaits, a_use_whose_order_is_refused_waits_for_what_arrives) {
  void* a = make(engine, nullptr);
  settle();
  engine.spill_all();
  ASSERT_STRNE(engine.find(a)->state, "resident");
  Waits waits(sim);
  sim.gpu().fail_from("cuStreamWaitEvent", 1, CUDA_ERROR_UNKNOWN);
  const uint64_t begin = sim.clock().now_ns();
  use(engine, a, nullptr, Access::read);
  EXPECT_GE(sim.clock().now_ns(), begin + copy_ns) << "the bytes have to be there";
  sim.gpu().fail_from("cuStreamWaitEvent", 0, 0);
  EXPECT_EQ(waits.locked, 0u) << "of " << waits.waits << " waits";
}

TEST_F(UnlockedWaits, a_free_of_what_arrives_returns_and_the_block_is_whole_when_it_is_reused) {
  const CUstream home = sim.make_stream(0), other = sim.make_stream(0);
  void* a = make(engine, home);
  settle();
  engine.spill_all();
  ASSERT_STRNE(engine.find(a)->state, "resident");
  Waits waits(sim);
  use(engine, a, other, Access::read);  // that stream waits for the copy
  Capture capture(sim, home);           // and this one cannot be made to
  const uint64_t begin = sim.clock().now_ns();
  ASSERT_TRUE(engine.free(a));
  EXPECT_EQ(sim.clock().now_ns(), begin) << "it waited";
  EXPECT_EQ(capture.end(), CUDA_SUCCESS);
  Result<void*> b = engine.allocate(block_bytes, home);
  ASSERT_TRUE(b);
  EXPECT_NE(*b, a) << "the copy in would overwrite what is written there";
  settle();
  Result<void*> c = engine.allocate(block_bytes, home);
  ASSERT_TRUE(c);
  EXPECT_EQ(*c, a) << "the copy is over";
  EXPECT_EQ(waits.locked, 0u);
  engine.check();
}

TEST_F(UnlockedWaits, the_device_is_waited_for_where_a_stream_may_have_ended) {
  const CUstream gone = sim.make_stream(0);
  std::vector<void*> blocks;
  for (int i = 0; i < 2; ++i) blocks.push_back(make(engine, gone));
  engine.may_end(gone);
  Waits waits(sim);
  for (int i = 0; i < 2; ++i) blocks.push_back(make(engine, nullptr));  // the first two leave
  EXPECT_GT(waits.waits, 0u);
  EXPECT_EQ(waits.locked, 0u);
  EXPECT_STRNE(engine.find(blocks[0])->state, "resident");
  for (void* block : blocks) use(engine, block, nullptr, Access::read);
  engine.check();
}

/// Where a thread pumps all the while, only that one waits: others have their patience.
TEST(ServedEngine, only_the_thread_that_pumps_waits_for_the_device) {
  SimulationOptions options = small_budget();
  options.served = true;
  Simulation sim(options);
  Engine& engine = sim.engine(0);
  const Driver::ContextGuard guard(sim.driver(), sim.context(0));
  const CUstream gone = sim.make_stream(0);
  std::vector<void*> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(make(engine, gone));
  engine.may_end(gone);
  Waits waits(sim);
  (void)engine.allocate(block_bytes, nullptr);  // there is no room until the device was waited for
  EXPECT_EQ(waits.waits, 0u);
  EXPECT_STREQ(engine.find(blocks[0])->state, "spilling");
  (void)engine.pump();
  EXPECT_EQ(waits.waits, 1u);
  EXPECT_EQ(waits.locked, 0u);
  for (int i = 0; i < 20; ++i, (void)engine.pump()) sim.clock().wait(1'000'000);
  EXPECT_STREQ(engine.find(blocks[0])->state, "hosted");
  engine.check();
}

/// A segment whose stream cannot wait for its bytes gets no new blocks until they have come.
TEST_F(UnlockedWaits, a_segment_is_taken_back_once_its_bytes_have_come) {
  const CUstream home = sim.make_stream(0), other = sim.make_stream(0);
  constexpr size_t small = 64u << 10;
  const auto make_small = [&] {
    Result<void*> block = engine.allocate(small, home);
    EXPECT_TRUE(block) << describe(block.error());
    use(engine, *block, home, Access::write);
    return *block;
  };
  const auto segment_of = [](const void* block) {
    return reinterpret_cast<uintptr_t>(block) / (2u << 20);
  };
  void* a = make_small();
  settle();
  engine.spill_all();
  ASSERT_STRNE(engine.find(a)->state, "resident") << "its segment leaves";
  Capture capture(sim, home);
  use(engine, a, other, Access::read);  // that stream waits for the copy; the segment's cannot
  Result<void*> meanwhile = engine.allocate(small, home);
  ASSERT_TRUE(meanwhile);
  EXPECT_NE(segment_of(*meanwhile), segment_of(a)) << "the copy in would overwrite it";
  EXPECT_EQ(capture.end(), CUDA_SUCCESS);
  settle();
  std::vector<void*> blocks;
  bool reused = false;
  for (int i = 0; i < 40 && !reused; ++i) {
    blocks.push_back(make_small());
    reused = segment_of(blocks.back()) == segment_of(a);
  }
  EXPECT_TRUE(reused) << "it stays aside for ever";
  engine.check();
}
