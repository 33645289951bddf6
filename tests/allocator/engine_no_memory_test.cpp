// The process's memory comes to its end within a call of the engine's: the call throws, at most,
// with no lock held, and who comes after is answered.
#include <gtest/gtest.h>
#include <unistd.h>

#include <new>
#include <vector>

#include "allocator/arena.h"
#include "tests/scarce_memory.h"
#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

/// Allocating looks at blocks that were freed while other streams used them. (Whoever waits for a
/// lock that it holds itself is ended by the alarm.)
TEST(EngineNoMemory, while_what_was_freed_is_looked_at) {
  unsigned thrown = 0;
  for (long given = 0;; ++given) {
    ::alarm(20);
    Simulation sim(small_budget());
    Engine& engine = sim.engine(0);
    CUstream other = sim.make_stream(0);
    std::vector<void*> blocks;
    for (int i = 0; i < 2; ++i) {
      Result<void*> made = engine.allocate(6u << 20, nullptr);
      ASSERT_TRUE(made);
      ASSERT_TRUE(engine.record_stream(*made, other));
      blocks.push_back(*made);
    }
    (void)sim.gpu().busy(other, 1'000'000);
    for (void* block : blocks) ASSERT_TRUE(engine.free(block));
    (void)sim.gpu().advance_to(sim.gpu().now() + 2'000'000);
    bool failed = false;
    memory_left = given;
    try {
      (void)engine.allocate(6u << 20, nullptr);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    memory_left = -1;
    (void)engine.allocate(6u << 20, nullptr);
    (void)engine.pump();
    thrown += failed;
    if (!failed && given > 0) break;
  }
  ::alarm(0);
  EXPECT_GT(thrown, 0u);
}

/// Addresses that were reserved for an arena go back where it could not be made.
TEST(EngineNoMemory, while_an_arena_is_made) {
  Simulation sim(small_budget());
  const uint64_t before = sim.gpu().reserved_bytes();
  unsigned thrown = 0;
  for (long given = 0;; ++given) {
    bool failed = false;
    memory_left = given;
    try {
      const auto arena = Arena::reserve(sim.driver(), uint64_t{1} << 30);
      memory_left = -1;
      ASSERT_TRUE(arena);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    memory_left = -1;
    EXPECT_EQ(sim.gpu().reserved_bytes(), before) << given << " allocations succeed";
    thrown += failed;
    if (!failed) break;
  }
  EXPECT_GT(thrown, 0u);
}
