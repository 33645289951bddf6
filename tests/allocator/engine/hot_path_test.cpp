// The hot paths take no lock and make no allocation: this program counts every pthread_mutex_lock
// and every heap allocation of the process while they run.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <new>

#include "tests/allocator/simulation.h"

namespace {
std::atomic<uint64_t> locks{0}, allocations{0};
}

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) {
  using Lock = int (*)(pthread_mutex_t*);
  static Lock real = reinterpret_cast<Lock>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  locks.fetch_add(1, std::memory_order_relaxed);
  return real(mutex);
}
void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

using namespace firn;
using namespace firn::test;

namespace {
struct Counted {
  uint64_t locks_before = locks, allocations_before = allocations;
  uint64_t locked() const { return locks - locks_before; }
  uint64_t allocated() const { return allocations - allocations_before; }
};
}  // namespace

TEST(HotPath, the_counters_count) {
  Counted counted;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&mutex);
  pthread_mutex_unlock(&mutex);
  static int* volatile kept;  // or the compiler leaves the allocation out
  kept = new int;
  delete kept;
  EXPECT_EQ(counted.locked(), 1u);
  EXPECT_GE(counted.allocated(), 1u);
}

TEST(HotPath, touch_and_release_of_a_launchs_blocks) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  uint64_t words[4];
  Hold holds[4];
  size_t held = 0;
  for (uint64_t& word : words) {
    Result<void*> block = engine.allocate(4u << 20, nullptr);
    ASSERT_TRUE(block);
    word = reinterpret_cast<uint64_t>(*block);
  }
  ASSERT_EQ(engine.touch_many(words, Access::write, holds, held), 4u);
  engine.release_many({holds, held}, nullptr);
  Counted counted;
  for (int i = 0; i < 1000; ++i) {
    held = 0;
    if (engine.touch_many(words, Access::write, holds, held) != 4 || held != 4) ADD_FAILURE();
    engine.release_many({holds, held}, nullptr);
  }
  EXPECT_EQ(counted.locked(), 0u);
  EXPECT_EQ(counted.allocated(), 0u);
}

TEST(HotPath, touch_and_release_of_a_resident_block) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  Result<void*> block = engine.allocate(4u << 20, nullptr);
  ASSERT_TRUE(block);
  {
    Result<Hold> first = engine.touch(*block, nullptr, Access::write);
    engine.release(*first, nullptr);
  }
  Counted counted;
  for (int i = 0; i < 1000; ++i) {
    Result<Hold> hold = engine.touch(*block, nullptr, i % 2 ? Access::read : Access::write);
    if (!hold || !hold->block) FAIL();
    engine.release(*hold, nullptr);
  }
  EXPECT_EQ(counted.locked(), 0u);
  EXPECT_EQ(counted.allocated(), 0u);
}

TEST(HotPath, malloc_and_free_from_the_free_lists) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  for (size_t bytes : {size_t{512}, size_t{70'000}, size_t{1} << 20, size_t{5} << 20}) {
    Result<void*> first = engine.allocate(bytes, nullptr);
    ASSERT_TRUE(first);
    ASSERT_TRUE(engine.free(*first));
    Counted counted;
    for (int i = 0; i < 1000; ++i) {
      Result<void*> block = engine.allocate(bytes, nullptr);
      if (!block) FAIL();
      Result<void> freed = engine.free(*block);
      if (!freed) FAIL();
    }
    EXPECT_EQ(counted.locked(), 0u) << bytes;
    EXPECT_EQ(counted.allocated(), 0u) << bytes;
  }
}
