// An engine whose driver's calls are seen: a test does something beside one, on another thread.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/allocator/simulation.h"

namespace firn::test {

inline constexpr size_t block_bytes = 6u << 20;

/// Set by the test, called beside the driver's calls of any thread.
class Hook {
 public:
  void operator=(std::function<void()> what) {
    const std::lock_guard lock(mutex_);
    what_ = std::move(what);
  }
  std::function<void()> get() const {
    const std::lock_guard lock(mutex_);
    return what_;
  }

 private:
  mutable std::mutex mutex_;
  std::function<void()> what_;
};

/// Called on a thread of its own each time that the driver opens memory, unmaps some, or makes or
/// gives back a frame.
inline Hook meanwhile, meanwhile_unmapped, meanwhile_made;
inline decltype(Driver::mem_set_access) open_memory;
inline decltype(Driver::mem_unmap) unmap_memory;
inline decltype(Driver::mem_create) create_memory;
inline decltype(Driver::mem_release) release_memory;
inline std::atomic<bool> slow_waits{false};
inline std::atomic<int> openings{0}, unmappings{0}, made{0}, given_back{0}, held_up{0};

template <class Call>
CUresult beside(const Hook& hook, Call&& call) {
  std::future<void> other;
  if (const std::function<void()> what = hook.get()) {
    other = std::async(std::launch::async, what);
    if (other.wait_for(std::chrono::seconds(10)) != std::future_status::ready) ++held_up;
  }
  const CUresult result = call();
  // (Held up, it goes on when this call has returned.)
  static std::mutex mutex;
  static std::vector<std::future<void>> late;
  if (other.valid()) {
    const std::lock_guard lock(mutex);
    late.push_back(std::move(other));
  }
  return result;
}
inline CUresult opens_memory(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access,
                      size_t count) {
  ++openings;
  return beside(meanwhile, [&] { return open_memory(address, bytes, access, count); });
}
inline CUresult unmaps_memory(CUdeviceptr address, size_t bytes) {
  ++unmappings;
  return beside(meanwhile_unmapped, [&] { return unmap_memory(address, bytes); });
}
inline CUresult makes_memory(CUmemGenericAllocationHandle* handle, size_t bytes,
                      const CUmemAllocationProp* prop, unsigned long long flags) {
  ++made;
  return beside(meanwhile_made, [&] { return create_memory(handle, bytes, prop, flags); });
}
inline CUresult gives_memory_back(CUmemGenericAllocationHandle handle) {
  ++given_back;
  return beside(meanwhile_made, [&] { return release_memory(handle); });
}

class MapApart : public ::testing::Test {
 protected:
  MapApart() : MapApart(small_budget()) {}
  explicit MapApart(const SimulationOptions& options) : sim(with_waits(options)) {
    open_memory = sim.driver().mem_set_access;
    sim.driver().mem_set_access = opens_memory;
    unmap_memory = sim.driver().mem_unmap;
    sim.driver().mem_unmap = unmaps_memory;
    create_memory = sim.driver().mem_create;
    sim.driver().mem_create = makes_memory;
    release_memory = sim.driver().mem_release;
    sim.driver().mem_release = gives_memory_back;
    forget_counts();
    at_each_call(nullptr);
    slow_waits = false;
  }
  ~MapApart() override {
    sim.driver().mem_set_access = open_memory;
    sim.driver().mem_unmap = unmap_memory;
    sim.driver().mem_create = create_memory;
    sim.driver().mem_release = release_memory;
  }
  /// Virtual time runs away from calls that are held: who waits for them sleeps a little each time.
  static SimulationOptions with_waits(SimulationOptions options) {
    options.on_wait = [] {
      if (slow_waits) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    return options;
  }
  static void forget_counts() {
    for (std::atomic<int>* each : {&openings, &unmappings, &made, &given_back, &held_up}) *each = 0;
  }
  static void at_each_call(const std::function<void()>& what) {
    for (Hook* each : {&meanwhile, &meanwhile_unmapped, &meanwhile_made}) *each = what;
  }
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
  /// Allocates a block, while another thread asks for one beside the driver's first call for it and
  /// within `most` has it, or not.
  void allocate_with_another(std::chrono::milliseconds most, std::future_status by_then) {
    meanwhile_made = [this, most, by_then] {
      if (asked.exchange(true)) return;  // by the other one's own call
      other = std::async(std::launch::async,
                         [this] { return engine().allocate(block_bytes, nullptr); });
      EXPECT_EQ(other.wait_for(most), by_then);
    };
    Result<void*> mine = engine().allocate(block_bytes, nullptr);
    meanwhile_made = nullptr;
    EXPECT_TRUE(mine) << describe(mine.error());
    ASSERT_TRUE(other.valid());
  }
  void wait_for_the_other() {
    while (other.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready)
      sim.clock().wait(1'000'000);
  }
  Simulation sim;
  std::atomic<bool> asked{false};
  std::future<Result<void*>> other;  // what another thread asked for
};

}  // namespace firn::test
