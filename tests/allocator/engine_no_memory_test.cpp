// The process's memory comes to its end within a call of the engine's: the call throws, at most,
// with no lock held, and who comes after is answered.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <vector>

#include "tests/allocator/simulation.h"

namespace {
thread_local long left = -1;  // so many more are given to this thread; negative: all

void* take(std::size_t bytes) {
  if (left == 0) throw std::bad_alloc();
  if (left > 0) --left;
  if (void* at = std::malloc(bytes)) return at;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t bytes) { return take(bytes); }
void* operator new[](std::size_t bytes) { return take(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return take(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete[](void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t) noexcept { std::free(at); }

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
    left = given;
    try {
      (void)engine.allocate(6u << 20, nullptr);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    left = -1;
    (void)engine.allocate(6u << 20, nullptr);
    (void)engine.pump();
    thrown += failed;
    if (!failed && given > 0) break;
  }
  ::alarm(0);
  EXPECT_GT(thrown, 0u);
}
