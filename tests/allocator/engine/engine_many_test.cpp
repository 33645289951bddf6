// Frees at once, a launch's blocks touched at once, holds that belong to no thread, streams that
// end, streams of other devices.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {
constexpr size_t block_bytes = 6u << 20;

void* make(Engine& engine, size_t bytes = block_bytes) {
  Result<void*> block = engine.allocate(bytes, nullptr);
  EXPECT_TRUE(block) << describe(block.error());
  Result<Hold> hold = engine.touch(*block, nullptr, Access::write);
  EXPECT_TRUE(hold);
  engine.release(*hold, nullptr);
  return *block;
}
uint64_t number(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
/// One that the test destroys itself.
CUstream own_stream(Simulation& sim) {
  Driver::ContextGuard context(sim.driver(), sim.context(0));
  CUstream stream = nullptr;
  EXPECT_EQ(sim.driver().stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  return stream;
}
std::string state(Engine& engine, void* block) { return engine.find(block)->state; }
}  // namespace

// The other's free is refused, and nobody has the block twice.
TEST(Many, of_two_frees_at_once_one_is_refused) {
  Simulation sim(small_budget());
  Engine& engine = sim.engine(0);
  for (const size_t bytes : {size_t{512}, block_bytes})
    for (int round = 0; round < 20'000; ++round) {
      Result<void*> block = engine.allocate(bytes, nullptr);
      ASSERT_TRUE(block) << describe(block.error());
      std::atomic<int> there{0}, freed{0};
      const auto free_with_the_other = [&] {
        ++there;
        while (there < 2) std::this_thread::yield();
        freed += static_cast<bool>(engine.free(*block));
      };
      std::thread other(free_with_the_other);
      free_with_the_other();
      other.join();
      ASSERT_EQ(freed, 1) << bytes << " bytes, round " << round;
    }
  engine.check();
}

TEST(Many, blocks_are_held_once_and_foreign_words_passed_over) {
  Simulation sim(small_budget());
  Engine& engine = sim.engine(0);
  void *a = make(engine), *b = make(engine), *small = make(engine, 4096);
  const uint64_t words[] = {
      number(a), 7, number(a) + 100, number(small), number(b) + block_bytes - 1, 0, number(b)};
  Hold holds[7];
  size_t held = 0;
  EXPECT_EQ(engine.touch_many(words, Access::write, holds, held), 7u);
  EXPECT_EQ(held, 3u);  // the small one's segment too
  EXPECT_EQ(engine.find(a)->pins, 1u);
  EXPECT_EQ(engine.find(b)->pins, 1u);
  engine.spill_all();
  EXPECT_EQ(state(engine, a), "resident");
  engine.release_many({holds, held}, nullptr);
  EXPECT_EQ(engine.find(a)->pins, 0u);
  engine.spill_all();
  EXPECT_NE(state(engine, a), "resident");
  engine.check();
}

// Whoever sees some of the work only says so: what is used in it may be used unseen at other times.
TEST(Many, what_is_seen_this_time_only_stays) {
  Simulation sim(small_budget());
  Engine& engine = sim.engine(0);
  void* a = *engine.allocate(block_bytes, nullptr);
  const uint64_t words[] = {number(a)};
  Hold hold;
  size_t held = 0;
  const auto may_leave = [&] {
    engine.release_many({&hold, held}, nullptr);
    held = 0;
    engine.spill_all();
    return state(engine, a) != "resident";
  };
  ASSERT_EQ(engine.touch_many(words, Access::write, &hold, held, Seen::this_time), 1u);
  EXPECT_FALSE(may_leave());
  Result<Hold> slow = engine.touch(a, nullptr, Access::read, Seen::this_time);
  ASSERT_TRUE(slow);
  hold = *slow;
  held = 1;
  EXPECT_FALSE(may_leave());
  slow = engine.touch_anyway(a, nullptr, Access::read, Seen::this_time);
  ASSERT_TRUE(slow);
  hold = *slow;
  held = 1;
  EXPECT_FALSE(may_leave());
  ASSERT_EQ(engine.touch_many(words, Access::write, &hold, held), 1u);
  EXPECT_TRUE(may_leave());
  slow = engine.touch(a, nullptr, Access::read, Seen::this_time);  // and it comes back for it
  ASSERT_TRUE(slow);
  engine.release(*slow, nullptr);
  // Whoever has the memory next begins anew.
  ASSERT_TRUE(engine.free(a));
  sim.synchronize();
  a = *engine.allocate(block_bytes, nullptr);
  ASSERT_EQ(number(a), words[0]);
  ASSERT_EQ(engine.touch_many(words, Access::write, &hold, held, Seen::this_time), 1u);
  EXPECT_FALSE(may_leave());
  engine.check();
}

TEST(Many, what_was_allocated_outside_of_operators_leaves_after_any_use) {
  Simulation sim(small_budget());
  Engine& engine = sim.engine(0);
  for (const bool outside : {true, false, true}) {  // the same memory each time
    void* a = *engine.allocate(block_bytes, nullptr);
    if (outside) engine.allocated_outside(a);
    engine.spill_all();
    EXPECT_EQ(state(engine, a), "resident") << "nobody has used it";
    const uint64_t words[] = {number(a)};
    Hold hold;
    size_t held = 0;
    ASSERT_EQ(engine.touch_many(words, Access::write, &hold, held, Seen::this_time), 1u);
    engine.release_many({&hold, held}, nullptr);
    engine.spill_all();
    EXPECT_EQ(state(engine, a) == "resident", !outside);
    Result<Hold> back = engine.touch(a, nullptr, Access::read, Seen::this_time);
    ASSERT_TRUE(back);
    engine.release(*back, nullptr);
    sim.synchronize();
    ASSERT_TRUE(engine.free(a));
    for (int i = 0; i < 20; ++i) {
      (void)engine.pump();
      sim.clock().wait(1'000'000);
    }
  }
  engine.allocated_outside(&sim);  // nobody's
  engine.check();
}

TEST(Many, it_stops_at_the_first_that_is_away) {
  Simulation sim(small_budget());
  Engine& engine = sim.engine(0);
  void *a = make(engine), *b = make(engine), *c = make(engine);
  engine.spill_all();
  Result<Hold> back = engine.touch(a, nullptr, Access::write);
  ASSERT_TRUE(back);
  engine.release(*back, nullptr);
  sim.synchronize();
  while (engine.pump()) {
  }
  back = engine.touch(a, nullptr, Access::write);  // its bytes have come: settled
  ASSERT_TRUE(back);
  engine.release(*back, nullptr);
  const uint64_t words[] = {number(a), number(b), number(c)};
  Hold holds[3];
  size_t held = 0;
  EXPECT_EQ(engine.touch_many(words, Access::write, holds, held), 1u);
  EXPECT_EQ(held, 1u);
  Result<Hold> slow = engine.touch(b, nullptr, Access::write);
  ASSERT_TRUE(slow);
  engine.release(*slow, nullptr);
  engine.release_many({holds, held}, nullptr);
}

TEST(Many, a_block_freed_while_held_ends_with_its_last_hold) {
  Simulation sim(small_budget());
  Engine& engine = sim.engine(0);
  void* a = make(engine);
  const uint64_t words[] = {number(a)};
  Hold hold;
  size_t held = 0;
  EXPECT_EQ(engine.touch_many(words, Access::write, &hold, held), 1u);
  ASSERT_TRUE(engine.free(a));
  EXPECT_FALSE(engine.find(a));
  engine.release_many({&hold, 1}, nullptr);
  engine.check();
}

TEST(Many, a_hold_apart_is_waited_for_by_who_needs_the_room) {
  Simulation sim(small_budget());
  Engine& engine = sim.engine(0);
  void *a = make(engine), *b = make(engine), *c = make(engine);
  std::vector<Hold> apart;
  for (void* block : {a, b, c}) apart.push_back(engine.hold_apart(block));
  ASSERT_NE(apart[0].block, nullptr);
  engine.spill_all();
  EXPECT_EQ(state(engine, a), "resident");
  // All that could leave is held for nobody's work: this waits until it is not.
  std::atomic<bool> asked{false};
  std::thread other([&] {
    while (!asked) std::this_thread::yield();
    for (Hold hold : apart) engine.release_apart(hold);
  });
  asked = true;
  Result<void*> more = engine.allocate(block_bytes, nullptr);
  other.join();
  EXPECT_TRUE(more) << describe(more.error());
  EXPECT_EQ(engine.hold_apart(&sim).block, nullptr);
  engine.check();
}

TEST(Many, an_ended_streams_uses_end_without_it) {
  Simulation sim(small_budget());
  Engine& engine = sim.engine(0);
  void* a = make(engine);
  CUstream stream = own_stream(sim);
  const uint64_t words[] = {number(a)};
  Hold hold;
  size_t held = 0;
  ASSERT_EQ(engine.touch_many(words, Access::write, &hold, held), 1u);
  ASSERT_TRUE(sim.fill(0, a, block_bytes, 5, stream));
  engine.release_many({&hold, 1}, stream);
  engine.stream_ends(stream);
  Driver::ContextGuard context(sim.driver(), sim.context(0));
  ASSERT_EQ(sim.driver().stream_destroy(stream), CUDA_SUCCESS);
  engine.spill_all();  // an event recorded on the stream now would end the process
  EXPECT_NE(state(engine, a), "resident");
  Result<Hold> back = engine.touch(a, nullptr, Access::write);
  ASSERT_TRUE(back);
  EXPECT_TRUE(sim.verify(0, a, block_bytes, 5, nullptr));
  engine.release(*back, nullptr);
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u);
  engine.stream_ends(stream);  // as one that ended already
  engine.stream_ends(reinterpret_cast<CUstream>(0x1234));
  engine.check();
}

TEST(Many, blocks_of_an_ended_stream_are_freed_and_its_handle_serves_again) {
  Simulation sim(small_budget());
  Engine& engine = sim.engine(0);
  for (int round = 0; round < 3; ++round) {
    CUstream stream = own_stream(sim);
    Result<void*> block = engine.allocate(block_bytes, stream);
    ASSERT_TRUE(block);
    Result<Hold> hold = engine.touch(*block, stream, Access::write);
    ASSERT_TRUE(hold);
    ASSERT_TRUE(sim.fill(0, *block, block_bytes, 5, stream));
    engine.release(*hold, stream);
    engine.stream_ends(stream);
    {
      Driver::ContextGuard context(sim.driver(), sim.context(0));
      ASSERT_EQ(sim.driver().stream_destroy(stream), CUDA_SUCCESS);
    }
    if (round == 1) engine.spill_all();
    ASSERT_TRUE(engine.free(*block));
    engine.trim();
    make(engine), make(engine), make(engine), make(engine);
    for (const BlockInfo& info : engine.blocks()) {
      if (!info.live) continue;
      ASSERT_TRUE(engine.free(info.base));
    }
    engine.check();
  }
}

TEST(Many, another_devices_streams_are_told_apart_and_waited_for) {
  SimulationOptions options = small_budget();
  options.devices = 2;
  Simulation sim(options);
  Engine& engine = sim.engine(0);
  ASSERT_TRUE(engine.allow_peer(1));
  const CUcontext other = sim.context(1);
  EXPECT_EQ(engine.stream_of(nullptr, sim.context(0)), nullptr);
  EXPECT_EQ(engine.stream_of(nullptr, nullptr), nullptr);
  const CUstream there = engine.stream_of(nullptr, other);
  EXPECT_NE(there, nullptr);
  EXPECT_EQ(engine.stream_of(nullptr, other), there);
  for (CUstream real : {CUstream{nullptr}, sim.make_stream(1)}) {
    void* a = make(engine);
    const CUstream stream = engine.stream_of(real, other);
    engine.spill_all();
    Result<Hold> hold = engine.touch(a, stream, Access::write);
    ASSERT_TRUE(hold) << describe(hold.error());
    ASSERT_TRUE(sim.fill(1, a, block_bytes, 9, real));
    engine.release(*hold, stream);
    engine.spill_all();  // waits for the other device's work, or the kernel dies
    EXPECT_NE(state(engine, a), "resident");
    hold = engine.touch(a, nullptr, Access::write);
    ASSERT_TRUE(hold);
    ASSERT_TRUE(sim.verify(0, a, block_bytes, 9, nullptr));
    engine.release(*hold, nullptr);
    sim.synchronize();
    ASSERT_TRUE(engine.free(a));
  }
  EXPECT_EQ(Simulation::wrong_bytes, 0u);
  engine.check();
}
