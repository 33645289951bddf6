// Blocks that are freed behind a stream of the caller's: nobody else's before that is over.
#include <gtest/gtest.h>

#include <vector>

#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {
constexpr size_t MiB = 1u << 20;
constexpr uint64_t second = 1'000'000'000;

int events = 0, unmappings = 0;
decltype(Driver::event_record) record_event;
decltype(Driver::mem_unmap) unmap_memory;

class FreeBehind : public ::testing::Test {
 protected:
  FreeBehind() : sim(options()) {
    record_event = sim.driver().event_record;
    sim.driver().event_record = [](CUevent event, CUstream stream) {
      ++events;
      return record_event(event, stream);
    };
    unmap_memory = sim.driver().mem_unmap;
    sim.driver().mem_unmap = [](CUdeviceptr address, size_t bytes) {
      ++unmappings;
      return unmap_memory(address, bytes);
    };
    fence = sim.make_stream(0);
  }
  ~FreeBehind() override {
    sim.driver().event_record = record_event;
    sim.driver().mem_unmap = unmap_memory;
  }
  static SimulationOptions options() {
    SimulationOptions o = small_budget();
    o.span_bytes = o.piece_bytes = 2 * MiB;
    return o;
  }
  Engine& engine() { return sim.engine(0); }
  void* make(size_t bytes) {
    Result<void*> block = engine().allocate(bytes, nullptr);
    EXPECT_TRUE(block) << describe(block.error());
    use(*block);
    return *block;
  }
  void use(void* block) {
    Result<Hold> hold = engine().touch(block, nullptr, Access::write);
    ASSERT_TRUE(hold) << describe(hold.error());
    engine().release(*hold, nullptr);
  }
  void keep_busy(uint64_t ns) {
    Driver::ContextGuard context(sim.driver(), sim.context(0));
    EXPECT_EQ(sim.gpu().busy(fence, ns), 0);
  }
  Simulation sim;
  CUstream fence = nullptr;
};

TEST_F(FreeBehind, many_frees_share_one_event) {
  std::vector<void*> blocks;
  for (int i = 0; i < 500; ++i) blocks.push_back(make(4096));
  keep_busy(second);
  events = 0;
  for (void* block : blocks) ASSERT_TRUE(engine().free_behind(block, fence, 1));
  EXPECT_LE(events, 2);
  void* after = make(4096);
  ASSERT_TRUE(engine().free_behind(after, fence, 2));  // the fence was given more
  EXPECT_LE(events, 4);
  EXPECT_GE(events, 2);
}

TEST_F(FreeBehind, a_block_that_is_partly_away_stays_mapped_until_then) {
  void* large = make(12 * MiB);
  (void)make(8 * MiB);  // a part of it leaves
  ASSERT_STREQ(engine().find(large)->state, "hosted");
  sim.synchronize();
  while (engine().pump() || engine().busy()) sim.clock().wait(1'000'000);  // no write is under way
  keep_busy(second);
  unmappings = 0;
  ASSERT_TRUE(engine().free_behind(large, fence, 1));
  for (int i = 0; i < 10; ++i) engine().pump();
  EXPECT_EQ(unmappings, 0);
  sim.synchronize();
  while (engine().pump()) {
  }
  EXPECT_GT(unmappings, 0);
  engine().check();
}

TEST_F(FreeBehind, its_memory_is_waited_for_longer_than_other_memory_and_not_for_ever) {
  for (const uint64_t busy_s : {60, 3600}) {
    void* block = make(12 * MiB);
    keep_busy(busy_s * second);
    ASSERT_TRUE(engine().free_behind(block, fence, busy_s));
    engine().stop_spilling(true);
    const uint64_t begin = sim.clock().now_ns();
    Result<void*> other = engine().allocate(12 * MiB, nullptr);
    const uint64_t waited = sim.clock().now_ns() - begin;
    engine().stop_spilling(false);
    EXPECT_LT(waited, 300 * second);
    if (busy_s == 60) {
      ASSERT_TRUE(other) << describe(other.error());
      EXPECT_GT(waited, 50 * second);
      EXPECT_EQ(engine().stats().zero_copy_bytes, 0u);
    } else {
      EXPECT_GT(waited, 100 * second);
    }
    if (other) {
      EXPECT_TRUE(engine().free(*other));
    }
    sim.synchronize();
  }
}

TEST_F(FreeBehind, a_fence_that_there_is_no_room_for_is_waited_for) {
  void* block = make(2 * MiB);
  for (int i = 0; i < 5000; ++i) engine().saw_stream(sim.make_stream(0));
  keep_busy(second);
  const uint64_t begin = sim.clock().now_ns();
  EXPECT_TRUE(engine().free_behind(block, fence, 1));
  EXPECT_GE(sim.clock().now_ns() - begin, second);
  EXPECT_EQ(engine().stats().allocated_bytes, 0u);
}

}  // namespace
