// A device that is full, a block that is away, and a stream with work: what hints are tried on.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "tests/allocator/simulation.h"

namespace firn::test {

inline constexpr size_t MiB = 1u << 20;
inline constexpr uint64_t ms = 1'000'000;
inline constexpr size_t block_bytes = 6 * MiB;

/// A device with room for three blocks, on which three are, A, B and C, unused in this order, and
/// one, D, is in host memory. queue() gives the stream work to do.
class Hints : public testing::Test {
 protected:
  void begin(SimulationOptions options = small_budget()) {
    sim_ = std::make_unique<Simulation>(options);
    ASSERT_TRUE(sim_->ok()) << sim_->error;
    stream_ = sim_->make_stream(0);
    d_ = make(1);
    a_ = make(2);
    b_ = make(3);
    c_ = make(4);
    settle();
    ASSERT_FALSE(there(d_));
    for (void* block : {a_, b_, c_}) ASSERT_TRUE(there(block));
  }
  Engine& engine() { return sim_->engine(0); }

  void* make(uint64_t pattern, size_t bytes = block_bytes) {
    const Result<void*> made = engine().allocate(bytes, stream_);
    EXPECT_TRUE(made) << describe(made.error());
    use(*made, Access::write, [&] {
      EXPECT_TRUE(sim_->fill(0, *made, bytes, pattern, stream_));
    });
    return *made;
  }
  template <class Work>
  void use(void* block, Access access, Work&& work) {
    const Result<Hold> hold = engine().touch(block, stream_, access);
    ASSERT_TRUE(hold) << describe(hold.error());
    work();
    engine().release(*hold, stream_);
  }
  void use(void* block) { use(block, Access::read, [] {}); }
  void read(void* block, uint64_t pattern, size_t bytes = block_bytes) {
    use(block, Access::read, [&] {
      EXPECT_TRUE(sim_->verify(0, block, bytes, pattern, stream_));
    });
    sim_->synchronize();
    EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
  }
  /// Work of so many milliseconds on the stream, from now on.
  void queue(uint64_t work_ms, CUstream stream) {
    Driver::ContextGuard context(sim_->driver(), sim_->context(0));
    ASSERT_EQ(sim_->gpu().busy(stream, work_ms * ms), 0);
    queued_until_ = std::max(queued_until_, sim_->clock().now_ns() + work_ms * ms);
  }
  void queue(uint64_t work_ms) { queue(work_ms, stream_); }

  bool is(void* block, const char* state) {
    return engine().find(block)->state == std::string(state);
  }
  bool there(void* block) { return is(block, "resident"); }

  /// As the service thread does, for so long.
  void pump_for(uint64_t ns) {
    const uint64_t end = sim_->clock().now_ns() + ns;
    while (sim_->clock().now_ns() < end) {
      engine().pump();
      sim_->clock().wait(std::min(end - sim_->clock().now_ns(), ms / 5));
    }
  }
  void settle() {
    while (engine().pump() || engine().busy()) sim_->clock().wait(ms / 5);
  }

  std::unique_ptr<Simulation> sim_;
  CUstream stream_ = nullptr;
  void *a_ = nullptr, *b_ = nullptr, *c_ = nullptr, *d_ = nullptr;
  uint64_t queued_until_ = 0;
};

}  // namespace firn::test
