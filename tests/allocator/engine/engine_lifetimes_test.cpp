// What the engine moves when it knows the program's period: nothing, where all of it fits.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tests/allocator/heard.h"
#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr size_t block_bytes = 4u << 20;
constexpr int layers = 4;

/// A training loop. A step's result is freed only after the next step's is made, as Python frees a
/// variable's old value after the new one.
class Loop {
 public:
  explicit Loop(Simulation& simulation, size_t bytes = block_bytes)
      : simulation_(simulation), engine_(simulation.engine(0)), bytes_(bytes) {
    for (int i = 0; i < layers; ++i) weights_.push_back(make());
  }
  static constexpr uint64_t blocks_most = 2 * layers + 2, alive_most = blocks_most * block_bytes;

  void step() {
    std::vector<void*> kept;
    for (int i = 0; i < layers; ++i) {
      use(weights_[static_cast<size_t>(i)], Access::read);
      kept.push_back(make());
    }
    void* result = make();
    if (result_) give_back(result_);
    result_ = result;
    void* gradient = make();  // as much memory as before the old result was freed
    for (int i = layers; i-- > 0;) {
      use(kept[static_cast<size_t>(i)], Access::read);
      use(weights_[static_cast<size_t>(i)], Access::write);
      give_back(kept[static_cast<size_t>(i)]);
    }
    EXPECT_TRUE(engine_.free(gradient));
    if (trims) engine_.trim();
    gaps_most = std::max(gaps_most, engine_.stats().gap_bytes);
    carry_out();
  }

  /// Nothing of what is decided is carried out, but for what a call waits for.
  bool hurried = false;
  /// Ends each step as torch.cuda.empty_cache() does.
  bool trims = false;
  uint64_t gaps_most = 0;  // at the end of a step
  std::function<void()> before_use;

 private:
  void* make() {
    Result<void*> block = engine_.allocate(bytes_, nullptr);
    EXPECT_TRUE(block) << describe(block.error());
    use(*block, Access::write);
    return *block;
  }
  void use(void* block, Access access) {
    if (before_use) before_use();
    Result<Hold> hold = engine_.touch(block, nullptr, access);
    EXPECT_TRUE(hold) << describe(hold.error());
    engine_.release(*hold, nullptr);
    carry_out();
  }
  void give_back(void* block) {
    EXPECT_TRUE(engine_.free(block));
    carry_out();
  }
  /// All that was decided, to its end: every kernel takes long.
  void carry_out() {
    if (hurried) return;
    simulation_.clock().wait(1'000'000);
    while (engine_.pump()) simulation_.clock().wait(1'000'000);
  }

  Simulation& simulation_;
  Engine& engine_;
  size_t bytes_;
  std::vector<void*> weights_;
  void* result_ = nullptr;
};

/// What happened in ten steps after the period was found.
EngineStats run(uint64_t budget_bytes, size_t bytes = block_bytes, bool trims = false) {
  constexpr int warm = 5;
  SimulationOptions options;
  options.budget_bytes = budget_bytes;
  options.policy = Policy::lifetime;
  Simulation simulation(options);
  Loop loop(simulation, bytes);
  loop.trims = trims;
  for (int i = 0; i < warm; ++i) loop.step();
  const EngineStats before = simulation.engine(0).stats();
  for (int i = 0; i < 10; ++i) loop.step();
  EngineStats stats = simulation.engine(0).stats();
  stats.spilled_bytes -= before.spilled_bytes;
  stats.evictions -= before.evictions;
  stats.stall_ns -= before.stall_ns;
  stats.gap_bytes = loop.gaps_most;
  return stats;
}

}  // namespace

TEST(EngineLifetimes, nothing_moves_where_everything_just_fits) {
  const EngineStats stats = run(Loop::alive_most);
  EXPECT_TRUE(stats.period_found);
  EXPECT_EQ(stats.peak_device_bytes, Loop::alive_most);
  EXPECT_EQ(stats.spilled_bytes, 0u);
  EXPECT_EQ(stats.evictions, 0u);
}

// Two blocks have half of a frame each, and the one is freed before the other: what is left of the
// frame is a gap then, and none when memory is the fullest.
TEST(EngineLifetimes, nothing_moves_for_gaps_that_are_filled_when_it_matters) {
  constexpr size_t bytes = 3u << 20;
  const EngineStats stats = run(Loop::blocks_most * bytes, bytes, true);
  EXPECT_TRUE(stats.period_found);
  EXPECT_EQ(stats.peak_device_bytes, Loop::blocks_most * bytes);
  EXPECT_GT(stats.gap_bytes, 0u);
  EXPECT_EQ(stats.spilled_bytes, 0u);
  EXPECT_EQ(stats.evictions, 0u);
}

// The fullest moment would have the fewest gaps, and a plan for those is late: 2.2 ms in ten steps.
TEST(EngineLifetimes, gaps_count_as_they_are_where_something_has_to_move) {
  constexpr size_t bytes = 3u << 20;
  const EngineStats stats = run((Loop::blocks_most - 2) * bytes, bytes, true);
  EXPECT_TRUE(stats.period_found);
  EXPECT_GT(stats.gap_bytes, 0u);
  EXPECT_GT(stats.prefetched_bytes, 0u);
  EXPECT_EQ(stats.stall_ns, 0u);
}

TEST(EngineLifetimes, where_a_block_lacks_something_moves) {
  const EngineStats stats = run(Loop::alive_most - block_bytes);
  EXPECT_TRUE(stats.period_found);
  EXPECT_GT(stats.spilled_bytes, 0u);
}

namespace {
/// Before the `moment`th use of a step, with what was decided until then not carried out.
void sent_away(uint64_t budget_bytes, int moment) {
  SimulationOptions options;
  options.budget_bytes = budget_bytes;
  options.policy = Policy::lifetime;
  Simulation simulation(options);
  Engine& engine = simulation.engine(0);
  Loop loop(simulation);
  for (int i = 0; i < 5; ++i) loop.step();
  ASSERT_TRUE(engine.stats().period_found);
  int uses = 0;
  loop.before_use = [&] {
    if (uses++ != moment) return;
    loop.hurried = false;
    simulation.synchronize();
    engine.spill_away();
    const EngineStats away = engine.stats();
    uint64_t pinned = 0;  // a new block, which nobody has used yet
    for (const PinnedBytes& each : away.pinned) pinned += each.bytes;
    EXPECT_LE(pinned, block_bytes);
    EXPECT_EQ(away.device_bytes, pinned);
    EXPECT_GE(away.hosted_bytes + away.nvme_bytes, layers * block_bytes);
    for (int i = 0; i < 200; ++i) {
      simulation.clock().wait(1'000'000);
      engine.pump();
    }
    EXPECT_EQ(engine.stats().device_bytes, pinned);
    EXPECT_EQ(engine.stats().prefetched_bytes, away.prefetched_bytes);
  };
  loop.hurried = true;
  loop.step();
  ASSERT_GT(uses, moment);
  const EngineStats before = engine.stats();
  for (int i = 0; i < 3; ++i) loop.step();
  engine.check();
  if (budget_bytes >= Loop::alive_most) return;
  // And what comes is fetched again before it is used.
  EXPECT_GT(engine.stats().prefetched_bytes, before.prefetched_bytes);
}
}  // namespace

TEST(EngineLifetimes, what_was_sent_away_stays_away_until_it_is_used) {
  for (const uint64_t lacking : {0, 4})
    for (const int moment : {1, 2, 6, 9}) {
      SCOPED_TRACE(testing::Message() << lacking << " blocks lack, before use " << moment);
      sent_away(Loop::alive_most - lacking * block_bytes, moment);
      if (HasFatalFailure()) return;
    }
}

TEST(EngineLifetimes, who_is_not_watched_is_from_the_allocation_after) {
  SimulationOptions options;
  options.watch_fraction = 1;
  Simulation simulation(options);
  Engine& engine = simulation.engine(0);
  unsigned watched = 0;
  Heard heard;
  heard.on_watch = [&] { ++watched; };
  engine.observe(&heard);
  Result<void*> block = engine.allocate(block_bytes, nullptr);
  ASSERT_TRUE(block);
  engine.spill_away();
  EXPECT_EQ(watched, 0u);  // not by the viewer's thread
  EXPECT_FALSE(engine.watching());
  Result<void*> another = engine.allocate(block_bytes, nullptr);
  ASSERT_TRUE(another);
  EXPECT_EQ(watched, 1u);
  EXPECT_TRUE(engine.watching());
}
