// The driver maps without the engine's lock: others come and go meanwhile, and a block that is
// freed then leaves nothing behind.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <utility>
#include <vector>

#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {
constexpr size_t block_bytes = 6u << 20;

/// Called on a thread of its own each time that the driver opens memory.
std::function<void()> meanwhile;
decltype(Driver::mem_set_access) open_memory;
int openings = 0, held_up = 0;

CUresult opens_memory(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access,
                      size_t count) {
  ++openings;
  std::future<void> other;
  if (meanwhile) {
    other = std::async(std::launch::async, meanwhile);
    if (other.wait_for(std::chrono::seconds(10)) != std::future_status::ready) ++held_up;
  }
  const CUresult result = open_memory(address, bytes, access, count);
  // (Held up, it goes on when this call has returned.)
  static std::vector<std::future<void>> late;
  if (other.valid()) late.push_back(std::move(other));
  return result;
}

class MapApart : public ::testing::Test {
 protected:
  MapApart() : sim(small_budget()) {
    open_memory = sim.driver().mem_set_access;
    sim.driver().mem_set_access = opens_memory;
    openings = held_up = 0;
    meanwhile = nullptr;
  }
  ~MapApart() override { sim.driver().mem_set_access = open_memory; }
  Engine& engine() { return sim.engine(0); }
  void* make(uint64_t seed) {
    Result<void*> block = engine().allocate(block_bytes, nullptr);
    EXPECT_TRUE(block) << describe(block.error());
    write(*block, seed);
    return *block;
  }
  void write(void* block, uint64_t seed) {
    Result<Hold> hold = engine().touch(block, nullptr, Access::write);
    EXPECT_TRUE(hold) << describe(hold.error());
    EXPECT_TRUE(sim.fill(0, block, block_bytes, seed, nullptr));
    engine().release(*hold, nullptr);
  }
  void read(void* block, uint64_t seed) {
    Result<Hold> hold = engine().touch(block, nullptr, Access::read);
    ASSERT_TRUE(hold) << describe(hold.error());
    EXPECT_TRUE(sim.verify(0, block, block_bytes, seed, nullptr));
    engine().release(*hold, nullptr);
  }
  void settle() {
    while (engine().pump() || engine().busy()) sim.clock().wait(1'000'000);
  }
  /// A block that had to leave, of pattern 1, and room for it since.
  void* away_with_room() {
    void* first = make(1);
    std::vector<void*> others;
    for (uint64_t seed = 2; seed <= 4; ++seed) others.push_back(make(seed));
    settle();
    for (void* other : others) EXPECT_TRUE(engine().free(other));
    settle();
    EXPECT_STRNE(engine().find(first)->state, "resident");
    return first;
  }
  Simulation sim;
};

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
  bool freed = false;
  meanwhile = [this, first, &freed] {
    if (std::exchange(freed, true)) return;
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

}  // namespace
