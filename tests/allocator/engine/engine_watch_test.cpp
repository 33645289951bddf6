// When watching begins: what was allocated before leaves where those who use it will tell, and only
// there.
#include <gtest/gtest.h>

#include "tests/allocator/heard.h"
#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {
constexpr size_t MiB = 1u << 20;

struct Job {
  explicit Job(double fraction) : sim(options(fraction)), engine(sim.engine(0)) {
    heard.on_watch = [this] { ++begun; };
    engine.observe(&heard);
  }
  static SimulationOptions options(double fraction) {
    SimulationOptions o;
    o.budget_bytes = 16 * MiB;
    o.host_bytes = 64 * MiB;
    o.watch_fraction = fraction;
    return o;
  }
  void* make(size_t bytes, Told of) {
    Result<void*> block = engine.allocate(bytes, nullptr, 0, of);
    EXPECT_TRUE(block) << describe(block.error());
    engine.check();
    return block ? *block : nullptr;
  }
  std::string state(void* block) { return engine.find(block)->state; }

  Heard heard;  // outlives the engine
  Simulation sim;
  Engine& engine;
  int begun = 0;
};
}  // namespace

TEST(EngineWatch, what_is_told_of_leaves_though_nobody_used_it) {
  for (const double fraction : {.75, .9, 1.}) {
    Job job(fraction);
    std::vector<void*> early;
    for (int i = 0; i < 3; ++i) early.push_back(job.make(4 * MiB, Told::always));
    early.push_back(job.make(14 * MiB, Told::always));
    EXPECT_EQ(job.begun, 1) << fraction;
    for (int i = 0; i < 3; ++i) EXPECT_NE(job.state(early[i]), "resident") << fraction;
    // (The last is of an operator that was not seen to begin; from its first use on it may leave.)
    std::swap(early.front(), early.back());
    for (void* block : early) {
      Result<Hold> hold = job.engine.touch(block, nullptr, Access::read);
      ASSERT_TRUE(hold) << describe(hold.error());
      job.engine.release(*hold, nullptr);
    }
  }
}

/// Pinned and unpinned, say: that says where its uses are told, and nobody tells yet.
TEST(EngineWatch, nothing_leaves_before_it_begins_though_its_uses_are_known) {
  Job job(.9);
  void* const block = job.make(4 * MiB, Told::always);
  ASSERT_TRUE(job.engine.pin(block, "by a test"));
  ASSERT_TRUE(job.engine.unpin(block));
  Result<Hold> hold = job.engine.touch(block, nullptr, Access::write, Seen::always);
  ASSERT_TRUE(hold) << describe(hold.error());
  job.engine.release(*hold, nullptr);
  ASSERT_TRUE(job.engine.cold(block, 4 * MiB));
  job.engine.spill_all();
  for (int i = 0; i < 8; ++i) job.engine.pump();
  EXPECT_EQ(job.begun, 0);
  EXPECT_EQ(job.state(block), "resident") << "a kernel may use it now, unseen";
}

TEST(EngineWatch, anything_else_stays) {
  Job job(.9);
  void* const told = job.make(4 * MiB, Told::always);
  void* const unknown = job.make(4 * MiB, Told::unknown);
  const Result<void*> block = job.engine.allocate(14 * MiB, nullptr);
  ASSERT_FALSE(block);
  EXPECT_NE(block.error().text.find("4MiB not yet seen in an operator"), std::string::npos)
      << block.error().text;
  EXPECT_NE(block.error().text.find("CUBLAS_WORKSPACE_CONFIG"), std::string::npos)
      << block.error().text;
  EXPECT_EQ(block.error().text.find("firn_watch:0"), std::string::npos) << block.error().text;
  EXPECT_EQ(job.begun, 1);
  job.make(10 * MiB, Told::unknown);
  EXPECT_EQ(job.state(unknown), "resident");
  EXPECT_NE(job.state(told), "resident");
}

// Launches that nobody looks at: before watching, of no block is it told what it is.
TEST(EngineWatch, early_blocks_are_no_workspaces_where_later_ones_are_told) {
  Job job(.5);
  job.make(10 * MiB, Told::unknown);
  EXPECT_EQ(job.begun, 1);
  job.make(4 * MiB, Told::always);
  const Result<void*> block = job.engine.allocate(16 * MiB, nullptr);
  ASSERT_FALSE(block);
  EXPECT_NE(block.error().text.find("firn_watch:0"), std::string::npos) << block.error().text;
  EXPECT_EQ(block.error().text.find("CUBLAS"), std::string::npos) << block.error().text;
}

TEST(EngineWatch, memory_that_is_reused_is_of_who_has_it_now) {
  for (const bool told_last : {false, true}) {
    Job job(.9);
    const Told first = told_last ? Told::unknown : Told::always;
    void* const before = job.make(4 * MiB, first);
    ASSERT_TRUE(job.engine.free(before));
    void* const now = job.make(4 * MiB, told_last ? Told::always : Told::unknown);
    ASSERT_EQ(now, before);
    EXPECT_EQ(bool(job.engine.allocate(14 * MiB, nullptr)), told_last);
    EXPECT_EQ(job.state(now) != "resident", told_last);
  }
}

TEST(EngineWatch, of_what_is_free_then_nothing_is_known_when_it_is_reused) {
  Job job(.9);
  void* const before = job.make(4 * MiB, Told::always);
  job.make(4 * MiB, Told::always);
  ASSERT_TRUE(job.engine.free(before));
  job.make(14 * MiB, Told::always);  // watching begins
  ASSERT_EQ(job.begun, 1);
  void* const now = job.make(2 * MiB, Told::unknown);
  EXPECT_FALSE(job.engine.allocate(15 * MiB, nullptr));
  EXPECT_EQ(job.state(now), "resident");
}

TEST(EngineWatch, a_segment_for_which_there_is_no_room_begins_it_too) {
  Job job(1);
  void* const early = job.make(8 * MiB, Told::always);
  Result<void*> segment = job.engine.allocate_segment(12 * MiB, nullptr, false, "a test's");
  ASSERT_TRUE(segment) << describe(segment.error());
  EXPECT_EQ(job.begun, 1);
  EXPECT_NE(job.state(early), "resident");
}
