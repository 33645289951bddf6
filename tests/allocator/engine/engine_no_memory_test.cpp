// The process's memory comes to its end within a call of the engine's: the call throws, at most,
// with no lock held, and who comes after is answered.
#include <gtest/gtest.h>
#include <unistd.h>

#include <new>
#include <vector>

#include "allocator/memory/arena.h"
#include "tests/allocator/simulation.h"
#include "tests/scarce_memory.h"

using namespace firn;
using namespace firn::test;

namespace {
/// Does the call end for want of memory, where so many allocations succeed?
template <class Call>
bool runs_out(long given, Call&& call) {
  bool thrown = false;
  memory_left = given;
  try {
    call();
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  memory_left = -1;
  return thrown;
}
}  // namespace

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
    const bool failed = runs_out(given, [&] { (void)engine.allocate(6u << 20, nullptr); });
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
    const bool failed = runs_out(given, [&] {
      EXPECT_TRUE(Arena::reserve(sim.driver(), uint64_t{1} << 30));
    });
    EXPECT_EQ(sim.gpu().reserved_bytes(), before) << given << " allocations succeed";
    thrown += failed;
    if (!failed) break;
  }
  EXPECT_GT(thrown, 0u);
}

/// Whoever waits for room is known to wait, unless there is no memory to know it in.
TEST(EngineNoMemory, while_room_is_waited_for) {
  unsigned thrown = 0;
  for (long given = 0;; ++given) {
    ::alarm(20);
    Simulation sim(small_budget());
    Engine& engine = sim.engine(0);
    std::vector<void*> blocks;
    for (int i = 0; i < 3; ++i) {
      Result<void*> made = engine.allocate(6u << 20, nullptr);
      ASSERT_TRUE(made);
      Result<Hold> hold = engine.touch(*made, nullptr, Access::write);
      ASSERT_TRUE(hold);
      ASSERT_TRUE(sim.fill(0, *made, 6u << 20, 7 + static_cast<uint64_t>(i), nullptr));
      engine.release(*hold, nullptr);
      blocks.push_back(*made);
    }
    (void)sim.gpu().busy(nullptr, 1'000'000);
    const bool failed = runs_out(given, [&] { (void)engine.allocate(6u << 20, nullptr); });
    bool whole = true;  // nothing was in the middle of moving
    for (int i = 0; whole && i < 3; ++i) {
      Result<Hold> hold = engine.touch(blocks[static_cast<size_t>(i)], nullptr, Access::read);
      whole = bool(hold);
      if (!whole) {
        ASSERT_EQ(hold.error().code, Code::host_out_of_memory) << describe(hold.error());
      } else {
        (void)sim.verify(0, blocks[static_cast<size_t>(i)], 6u << 20,
                         7 + static_cast<uint64_t>(i), nullptr);
        engine.release(*hold, nullptr);
      }
    }
    sim.synchronize();
    ASSERT_EQ(Simulation::wrong_bytes, 0u) << given << ": " << Simulation::first_wrong;
    const uint64_t waited = engine.stats().stall_ns;
    sim.clock().wait(1'000'000);
    EXPECT_EQ(engine.stats().stall_ns, waited) << given << ": a wait has no end";
    thrown += failed;
    if (!failed && given > 0) break;
  }
  ::alarm(0);
  EXPECT_GT(thrown, 10u);
}

/// A block beyond the size classes is given back without any, and is there for the next one.
TEST(EngineNoMemory, while_the_largest_are_freed) {
  constexpr size_t bytes = size_t{2100} << 20;
  SimulationOptions options;
  options.memory_bytes = 2 * bytes;
  options.budget_bytes = bytes + (64u << 20);
  Simulation sim(options);
  Engine& engine = sim.engine(0);
  Result<void*> block = engine.allocate(bytes, nullptr);
  ASSERT_TRUE(block) << describe(block.error());
  EXPECT_FALSE(runs_out(0, [&] { EXPECT_TRUE(engine.free(*block)); }));
  engine.check();
  EXPECT_TRUE(engine.allocate(bytes, nullptr)) << "its memory is in nobody's hands";
}

/// A decision that finds no memory is not taken: nothing was in the middle of moving, and blocks go
/// on to leave and come back. (Where the engine's own lists find none, it ends and says so.)
TEST(EngineNoMemory, while_it_is_decided_what_moves) {
  unsigned without = 0;  // decisions, or what else is done without
  for (long given = 0;; ++given) {
    ::alarm(20);
    SimulationOptions options = small_budget();
    options.policy = Policy::lifetime;
    options.watch_fraction = 0;
    Simulation sim(options);
    Engine& engine = sim.engine(0);
    std::vector<void*> blocks;
    const auto use = [&](void* block) {
      Result<Hold> hold = engine.touch(block, nullptr, Access::write);
      if (hold) engine.release(*hold, nullptr);
      return bool(hold);
    };
    for (int i = 0; i < 4; ++i) {
      Result<void*> made = engine.allocate(4u << 20, nullptr);
      ASSERT_TRUE(made);
      ASSERT_TRUE(use(*made));
      blocks.push_back(*made);
    }
    for (int round = 0; round < 12; ++round)
      for (void* block : blocks) {
        ASSERT_TRUE(use(block));
        (void)engine.pump();
        sim.clock().wait(1'000'000);
      }
    ASSERT_TRUE(engine.stats().period_found);
    for (int round = 0; round < 3; ++round)  // so much happens that it is decided anew
      for (int i : {2, 3}) ASSERT_TRUE(use(blocks[static_cast<size_t>(i)]));
    sim.clock().wait(10'000'000);
    const unsigned long before = memory_refused;
    const bool thrown = runs_out(given, [&] { (void)engine.pump(); });
    const bool refused = memory_refused > before;
    if (refused && !thrown) {
      ++without;
      for (int round = 0; round < 2; ++round)
        for (void* block : blocks) EXPECT_TRUE(use(block)) << given;
      engine.check();
    }
    if (!refused) break;
  }
  ::alarm(0);
  EXPECT_GT(without, 0u);
}
