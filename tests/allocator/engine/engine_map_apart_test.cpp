// The driver makes, maps and unmaps memory without the engine's lock: others come and go meanwhile,
// and a block that is freed then leaves nothing behind.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <vector>

#include "tests/allocator/engine/map_apart.h"

using namespace firn;
using namespace firn::test;

namespace {

TEST_F(MapApart, others_enter_while_an_allocation_is_mapped) {
  meanwhile = [this] { (void)engine().stats(); };
  (void)make(1);
  EXPECT_GT(openings, 0);
  EXPECT_EQ(held_up, 0);
}

TEST_F(MapApart, others_enter_while_a_block_comes_back) {
  void* first = make(1);
  for (uint64_t seed = 2; seed <= 4; ++seed) (void)make(seed);
  settle();
  ASSERT_STRNE(engine().find(first)->state, "resident");
  openings = 0;
  meanwhile = [this] { (void)engine().stats(); };
  read(first, 1);
  EXPECT_GT(openings, 0);
  EXPECT_EQ(held_up, 0);
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u);
}

TEST_F(MapApart, others_enter_while_a_prefetch_is_mapped) {
  void* first = away_with_room();
  openings = 0;
  meanwhile = [this] { (void)engine().stats(); };
  ASSERT_TRUE(engine().prefetch(first, block_bytes, nullptr));
  settle();
  EXPECT_GT(openings, 0);
  EXPECT_EQ(held_up, 0);
  meanwhile = nullptr;
  EXPECT_STREQ(engine().find(first)->state, "resident");
  read(first, 1);
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u);
}

// Its addresses and its frames are others' only when the driver's calls have returned.
TEST_F(MapApart, a_block_that_is_freed_while_it_is_mapped_leaves_nothing) {
  void* first = away_with_room();
  std::atomic<bool> freed{false};
  meanwhile = [this, first, &freed] {
    if (freed.exchange(true)) return;
    EXPECT_TRUE(engine().free(first));
  };
  ASSERT_TRUE(engine().prefetch(first, block_bytes, nullptr));
  settle();
  EXPECT_TRUE(freed);
  EXPECT_EQ(held_up, 0);
  meanwhile = nullptr;
  EXPECT_FALSE(engine().find(first));
  engine().check();
  EXPECT_EQ(engine().stats().allocated_bytes, 0u);
  engine().trim();
  EXPECT_EQ(engine().stats().device_bytes, 0u);
  EXPECT_EQ(sim.counts(0).mapped_bytes, 0u);
  for (uint64_t seed = 5; seed <= 7; ++seed) (void)make(seed);  // the addresses serve again
  engine().check();
}

// And before the driver's calls have begun, too.
TEST_F(MapApart, a_block_that_is_freed_before_it_is_mapped_leaves_nothing) {
  void* first = away_with_room();
  openings = 0;
  ASSERT_TRUE(engine().prefetch(first, block_bytes, nullptr));
  ASSERT_TRUE(engine().free(first));
  engine().check();
  settle();
  EXPECT_EQ(openings, 0);
  engine().trim();
  EXPECT_EQ(engine().stats().device_bytes, 0u);
}

TEST_F(MapApart, others_enter_while_a_block_leaves) {
  void* first = make(1);
  std::vector<void*> others{make(2), make(3)};
  meanwhile_unmapped = [this] { (void)engine().stats(); };
  others.push_back(make(4));  // the first leaves
  settle();
  ASSERT_STRNE(engine().find(first)->state, "resident");
  EXPECT_GT(unmappings, 0);
  EXPECT_EQ(held_up, 0);
  meanwhile_unmapped = nullptr;
  for (void* other : others) EXPECT_TRUE(engine().free(other));
  read(first, 1);
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u);
}

TEST_F(MapApart, a_block_that_is_freed_while_it_is_unmapped_leaves_nothing) {
  void* first = make(1);
  sim.synchronize();
  std::atomic<bool> freed{false};
  meanwhile_unmapped = [this, first, &freed] {
    if (freed.exchange(true)) return;
    EXPECT_TRUE(engine().free(first));
    EXPECT_FALSE(engine().find(first));
  };
  ASSERT_TRUE(engine().cold(first, block_bytes));
  settle();
  EXPECT_TRUE(freed);
  EXPECT_EQ(held_up, 0);
  meanwhile_unmapped = nullptr;
  engine().check();
  engine().trim();
  EXPECT_EQ(engine().stats().device_bytes, 0u);
  EXPECT_EQ(sim.counts(0).mapped_bytes, 0u);
  for (uint64_t seed = 5; seed <= 7; ++seed) (void)make(seed);  // the addresses serve again
  engine().check();
}

TEST_F(MapApart, a_block_that_is_wanted_while_it_is_unmapped_comes_back) {
  void* first = make(1);
  sim.synchronize();
  std::future<void> reader;
  meanwhile_unmapped = [this, first, &reader] {
    if (asked.exchange(true)) return;
    reader = std::async(std::launch::async, [this, first] { read(first, 1); });
    EXPECT_EQ(reader.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  };
  ASSERT_TRUE(engine().cold(first, block_bytes));
  settle();
  ASSERT_TRUE(reader.valid());
  meanwhile_unmapped = nullptr;
  while (reader.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) settle();
  EXPECT_EQ(held_up, 0);
  EXPECT_STREQ(engine().find(first)->state, "resident");
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u);
  engine().check();
}

TEST_F(MapApart, others_enter_while_frames_are_made_and_given_back) {
  std::vector<void*> others{make(1), make(2), make(3)};  // (the first asks what can be made)
  settle();
  for (void* other : others) EXPECT_TRUE(engine().free(other));
  settle();
  made = 0;
  given_back = 0;
  meanwhile_made = [this] { (void)engine().stats(); };
  Result<void*> larger = engine().allocate(10u << 20, nullptr);
  meanwhile_made = nullptr;
  ASSERT_TRUE(larger) << describe(larger.error());
  EXPECT_GT(made, 0);
  EXPECT_GT(given_back, 0);
  EXPECT_EQ(held_up, 0);
  EXPECT_LE(sim.counts(0).frame_bytes_peak, 18u << 20);
  engine().check();
}

// Frames in the hands of a thread that is in the driver are counted once, like all others.
TEST_F(MapApart, each_frame_is_somewhere_while_the_driver_is_called) {
  void* const first = away_with_room();  // (the first asks what can be made)
  forget_counts();
  at_each_call([this] { engine().check(); });
  read(first, 1);
  Result<void*> shared = engine().allocate(5u << 18, nullptr);  // a part of a frame
  ASSERT_TRUE(shared) << describe(shared.error());
  Result<Hold> hold = engine().touch(*shared, nullptr, Access::write);
  ASSERT_TRUE(hold) << describe(hold.error());
  engine().release(*hold, nullptr);
  engine().spill_all();
  settle();
  read(first, 1);
  ASSERT_TRUE(engine().free(*shared));
  std::vector<void*> others{first, make(2), make(3)};
  settle();
  for (void* other : others) EXPECT_TRUE(engine().free(other));
  settle();
  Result<void*> larger = engine().allocate(10u << 20, nullptr);  // of frames of other sizes
  ASSERT_TRUE(larger) << describe(larger.error());
  at_each_call(nullptr);
  EXPECT_GT(openings, 0);
  EXPECT_GT(unmappings, 0);
  EXPECT_GT(made, 0);
  EXPECT_GT(given_back, 0);
  EXPECT_EQ(held_up, 0);
  engine().check();
}

// Frames that are being made were reserved by who makes them: they count once.
TEST_F(MapApart, what_is_being_made_for_one_is_no_reason_to_evict_for_another) {
  (void)make(1);
  settle();
  allocate_with_another(std::chrono::seconds(10), std::future_status::ready);
  EXPECT_TRUE(other.get());
  EXPECT_EQ(engine().stats().evictions, 0u);
  EXPECT_EQ(engine().stats().device_bytes, 18u << 20);
  engine().check();
}

// The memory of frames that are being given back is there when the driver's calls have returned.
TEST_F(MapApart, what_is_being_given_back_is_waited_for) {
  (void)make(1);
  void* large = *engine().allocate(12u << 20, nullptr);
  ASSERT_TRUE(large);
  ASSERT_TRUE(engine().free(large));
  settle();
  slow_waits = true;
  allocate_with_another(std::chrono::milliseconds(50), std::future_status::timeout);
  wait_for_the_other();
  EXPECT_TRUE(other.get());
  EXPECT_EQ(engine().stats().evictions, 0u);
  engine().check();
}

// What another thread was promised may be refused to this one, and the other way round.
TEST_F(MapApart, a_frame_that_is_refused_meanwhile_is_no_abort) {
  (void)make(1);
  made = 0;
  meanwhile_made = [this] {
    if (asked.exchange(true)) return;
    other = std::async(std::launch::async, [this] { return engine().allocate(4u << 20, nullptr); });
    (void)other.wait_for(std::chrono::milliseconds(50));
  };
  sim.gpu().fail_at("cuMemCreate", 2, CUDA_ERROR_OUT_OF_MEMORY);
  (void)engine().allocate(block_bytes, nullptr);
  meanwhile_made = nullptr;
  ASSERT_TRUE(other.valid());
  other.wait();
  EXPECT_GE(made, 2);
  settle();
  engine().check();
  engine().trim();
  EXPECT_TRUE(engine().allocate(block_bytes, nullptr));
}

/// A program whose next allocations are mapped ahead of it, on the engine's own time.
class MappedAhead : public MapApart {
 protected:
  MappedAhead() : MapApart(by_lifetimes()) {
    weights_ = make(1);
    for (int step = 0; step < 8; ++step) run();
  }
  static SimulationOptions by_lifetimes() {
    SimulationOptions options = small_budget();
    options.policy = Policy::lifetime;
    return options;
  }
  void run() {
    for (const size_t bytes : {block_bytes, size_t{10} << 20}) pass(bytes);
  }
  void pass(size_t bytes) {
    Result<void*> block = engine().allocate(bytes, nullptr);
    ASSERT_TRUE(block) << describe(block.error());
    for (void* each : {weights_, *block}) {
      Result<Hold> hold = engine().touch(each, nullptr, Access::write);
      ASSERT_TRUE(hold) << describe(hold.error());
      engine().release(*hold, nullptr);
      go_on();
    }
    ASSERT_TRUE(engine().free(*block));
    go_on();
  }
  void go_on() {
    sim.clock().wait(1'000'000);
    ahead_ = true;
    while (engine().pump()) sim.clock().wait(1'000'000);
    ahead_ = false;
  }
  void* weights_ = nullptr;
  std::atomic<bool> ahead_{false};
};

// Others wait until it is there, and have its memory, before anything leaves for them.
TEST_F(MappedAhead, memory_that_is_mapped_for_nobody_yet_is_no_reason_to_evict) {
  const uint64_t evictions = engine().stats().evictions;
  slow_waits = true;
  meanwhile = [this] {
    if (!ahead_ || asked.exchange(true)) return;
    other = std::async(std::launch::async, [this] { return engine().allocate(4u << 20, nullptr); });
    (void)other.wait_for(std::chrono::milliseconds(50));
  };
  for (int step = 0; step < 3 && !other.valid(); ++step) pass(block_bytes);
  meanwhile = nullptr;
  ASSERT_TRUE(other.valid()) << "nothing was mapped ahead";
  wait_for_the_other();
  EXPECT_TRUE(other.get());
  EXPECT_EQ(engine().stats().evictions, evictions);
  engine().check();
}

}  // namespace
