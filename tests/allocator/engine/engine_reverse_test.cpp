// What comes back ahead of need before any period is known: a first backward pass.
#include <gtest/gtest.h>

#include <vector>

#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr size_t block_bytes = 4u << 20;
constexpr uint64_t pause_ns = 20'000'000;

/// Memory for 16 blocks. Each operator takes long enough for what was begun to end.
class Reverse : public testing::Test {
 protected:
  void begin(Policy policy = Policy::lifetime) {
    SimulationOptions options;
    options.budget_bytes = 16 * block_bytes;
    options.host_bytes = 64 * block_bytes;
    options.policy = policy;
    sim_ = std::make_unique<Simulation>(options);
    ASSERT_TRUE(sim_->ok()) << sim_->error;
    stream_ = sim_->make_stream(0);
  }
  Engine& engine() { return sim_->engine(0); }
  EngineStats stats() { return engine().stats(); }

  void* make() {
    const Result<void*> made = engine().allocate(block_bytes, stream_);
    EXPECT_TRUE(made) << describe(made.error());
    use(*made, Access::write, [&] {
      EXPECT_TRUE(sim_->fill(0, *made, block_bytes, pattern(*made), stream_));
    });
    return *made;
  }
  void read(void* block) {
    use(block, Access::read, [&] {
      EXPECT_TRUE(sim_->verify(0, block, block_bytes, pattern(block), stream_));
    });
  }
  void free(void* block) {
    ASSERT_TRUE(engine().free(block));
    pause();
  }
  /// A forward pass: so many blocks, made one after the other.
  std::vector<void*> forward(size_t count) {
    std::vector<void*> made;
    for (size_t i = 0; i < count; ++i) made.push_back(make());
    return made;
  }
  bool there(void* block) { return engine().find(block)->state == std::string("resident"); }

  static uint64_t pattern(const void* block) { return reinterpret_cast<uintptr_t>(block); }
  template <class Work>
  void use(void* block, Access access, Work&& work) {
    const Result<Hold> hold = engine().touch(block, stream_, access);
    ASSERT_TRUE(hold) << describe(hold.error());
    work();
    engine().release(*hold, stream_);
    pause();
  }
  void pause() {
    const uint64_t end = sim_->clock().now_ns() + pause_ns;
    while (sim_->clock().now_ns() < end) {
      engine().pump();
      sim_->clock().wait(pause_ns / 20);
    }
    EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
  }

  std::unique_ptr<Simulation> sim_;
  CUstream stream_ = nullptr;
};

TEST_F(Reverse, what_left_last_comes_first_as_a_backward_pass_frees) {
  begin();
  std::vector<void*> made = forward(40);
  ASSERT_GE(stats().hosted_bytes + stats().nvme_bytes, 20 * block_bytes);
  ASSERT_EQ(stats().prefetched_bytes, 0u) << "while it only allocates";
  const uint64_t faulted = stats().faulted_bytes;
  while (made.size() > 1) {
    read(made.back());
    free(made.back());
    made.pop_back();
    if (stats().prefetched_bytes == 0) continue;
    EXPECT_TRUE(there(made.back())) << made.size() << " are left";
  }
  EXPECT_EQ(stats().faulted_bytes, faulted + 2 * block_bytes)
      << "once two came in that order, each was there when it was used";
  EXPECT_GE(stats().prefetched_bytes, 20 * block_bytes);
  engine().check();
}

TEST_F(Reverse, a_part_of_memory_stays_free_for_what_the_program_makes) {
  begin();
  std::vector<void*> made = forward(40);
  while (stats().prefetched_bytes < 4 * block_bytes) {
    ASSERT_FALSE(made.empty());
    read(made.back());
    free(made.back());
    made.pop_back();
  }
  ASSERT_GT(stats().prefetched_bytes, 0u);
  const uint64_t evictions = stats().evictions;
  (void)make();  // a gradient
  EXPECT_EQ(stats().evictions, evictions) << "nothing had to leave for it";
}

TEST_F(Reverse, a_program_that_allocates_as_much_as_it_frees_gets_nothing) {
  begin();
  std::vector<void*> made = forward(40);
  for (int i = 0; i < 20; ++i) {
    free(made.back());
    made.back() = make();
  }
  EXPECT_EQ(stats().prefetched_bytes, 0u);
}

TEST_F(Reverse, a_program_that_goes_forward_again_is_left_alone) {
  begin();
  std::vector<void*> made = forward(40);
  for (void* block : made) {
    read(block);
    free(block);
  }
  EXPECT_EQ(stats().prefetched_bytes, 0u);
}

TEST_F(Reverse, by_age_alone_nothing_comes_ahead) {
  begin(Policy::age);
  std::vector<void*> made = forward(40);
  while (!made.empty()) {
    read(made.back());
    free(made.back());
    made.pop_back();
  }
  EXPECT_EQ(stats().prefetched_bytes, 0u);
}

}  // namespace
