// Blocks come back to the device: in parts, ahead of their use, refused, and freed on their way.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/allocator/engine/store_job.h"

using namespace firn;
using namespace firn::test;

TEST(EngineFault, one_that_is_freed_on_its_way_leaves_nothing_behind) {
  StoreJob job(with_ill_store());
  job.fill_all();
  Engine& engine = job.sim.engine(0);
  for (size_t i = 2; i < 8; ++i) ASSERT_TRUE(engine.free(job.blocks[i]));
  job.sim.synchronize();
  ASSERT_TRUE(engine.prefetch(job.blocks[0], block_bytes, nullptr));
  for (int i = 0; i < 10 && engine.find(job.blocks[0])->state != std::string("faulting"); ++i)
    engine.pump();
  ASSERT_STREQ(engine.find(job.blocks[0])->state, "faulting");
  ASSERT_GT(job.sim.store()->in_flight(0), 0u);
  ASSERT_TRUE(engine.free(job.blocks[0]));
  ASSERT_TRUE(engine.free(job.blocks[1]));
  job.settle();
  engine.trim();
  EXPECT_EQ(job.sim.counts(0).frame_bytes, 0u);
  EXPECT_EQ(job.sim.store()->stats().slots_in_use, 0u);
  EXPECT_EQ(engine.stats().host_used_bytes, 0u);
  engine.check();
}

/// Others have the device's memory, or the driver has none to map it with: out of memory, in words.
TEST(EngineFault, what_the_device_has_no_memory_for_stays_away) {
  StoreJob job(with_ill_store());
  job.fill_all();
  Engine& engine = job.sim.engine(0);
  for (size_t i = 1; i < 8; ++i) ASSERT_TRUE(engine.free(job.blocks[i]));
  job.sim.synchronize();
  job.settle();
  engine.trim();
  ASSERT_EQ(job.sim.counts(0).frame_bytes, 0u);
  for (const char* entry : {"cuMemCreate", "cuMemMap"}) {
    job.sim.gpu().fail_from(entry, 1, CUDA_ERROR_OUT_OF_MEMORY);
    for (const bool anyway : {false, true}) {
      const Result<Hold> refused =
          anyway ? engine.touch_anyway(job.blocks[0], nullptr, Access::read)
                 : engine.touch(job.blocks[0], nullptr, Access::read);
      ASSERT_FALSE(refused) << entry;
      EXPECT_EQ(refused.error().code, Code::out_of_memory) << describe(refused.error());
      for (const char* words : {"firn_budget", entry, "CUDA_ERROR_OUT_OF_MEMORY"})
        EXPECT_NE(refused.error().text.find(words), std::string::npos) << refused.error().text;
      EXPECT_STREQ(engine.find(job.blocks[0])->state, "spilled");
    }
    job.sim.gpu().fail_at(entry, 0, 0);
  }
  EXPECT_TRUE(job.read(0));
  engine.check();
}

/// So often room is made, and then host memory serves whom it may.
TEST(EngineFault, after_eight_refusals_the_device_is_asked_no_more) {
  for (const bool anyway : {false, true}) {
    StoreJob job(with_ill_store());
    job.fill_all();
    Engine& engine = job.sim.engine(0);
    for (uint64_t nth = 1; nth <= 8; ++nth)
      job.sim.gpu().fail_at("cuMemMap", nth, CUDA_ERROR_OUT_OF_MEMORY);
    Result<Hold> hold = anyway ? engine.touch_anyway(job.blocks[0], nullptr, Access::read)
                               : engine.touch(job.blocks[0], nullptr, Access::read);
    ASSERT_EQ(static_cast<bool>(hold), anyway);
    EXPECT_EQ(engine.stats().zero_copy_bytes, anyway ? block_bytes : 0);
    if (anyway) engine.release(*hold, nullptr);
  }
}

TEST(EngineFault, less_than_eight_refusals_are_nobodys_but_for_those_of_another_kind) {
  StoreJob job(with_ill_store());
  job.fill_all();
  Engine& engine = job.sim.engine(0);
  for (uint64_t nth = 1; nth <= 7; ++nth)
    job.sim.gpu().fail_at("cuMemMap", nth, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(job.read(0));
  EXPECT_EQ(engine.stats().zero_copy_bytes, 0u);
  ASSERT_STREQ(engine.find(job.blocks[1])->state, "spilled");
  job.sim.gpu().fail_at("cuMemMap", 1, CUDA_ERROR_UNKNOWN);
  const Result<void> refused = job.read(1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::driver) << describe(refused.error());
  EXPECT_TRUE(job.read(1));
}

TEST(EngineFault, what_comes_from_host_memory_is_told_from_what_is_read) {
  StoreJob job(with_ill_store());
  job.fill_all();
  Engine& engine = job.sim.engine(0);
  ASSERT_TRUE(job.read(0));
  EngineStats stats = engine.stats();
  EXPECT_EQ(stats.forwarded_bytes, 0u);
  EXPECT_EQ(stats.faulted_bytes, block_bytes);
  EXPECT_EQ(stats.faults, 1u);
  ASSERT_TRUE(engine.cold(job.blocks[0], block_bytes));  // which is in host memory still
  job.settle();
  ASSERT_STRNE(engine.find(job.blocks[0])->state, "resident");
  ASSERT_TRUE(job.read(0));
  stats = engine.stats();
  EXPECT_EQ(stats.forwarded_bytes, block_bytes);
  EXPECT_EQ(stats.faulted_bytes, 2 * block_bytes);
  EXPECT_EQ(stats.faults, 2u);
}

/// A part of it came, or is on its way, for which alone there was room.
class EngineFaultInPart : public testing::TestWithParam<bool> {};

TEST_P(EngineFaultInPart, is_whole_when_there_is_room) {
  const bool arrives_first = GetParam();
  SimulationOptions options = with_ill_store();
  options.budget_bytes += 2u << 20;
  options.span_bytes = 2u << 20;
  StoreJob job(options);
  job.fill_all();
  Engine& engine = job.sim.engine(0);
  const auto is = [&](size_t i, const char* state) {
    return engine.find(job.blocks[i])->state == std::string(state);
  };
  std::vector<size_t> pinned;
  for (size_t i = 1; i < 8; ++i)
    if (is(i, "resident")) {
      ASSERT_TRUE(engine.pin(job.blocks[i], "a test"));
      pinned.push_back(i);
    }
  ASSERT_EQ(pinned.size(), 3u);
  ASSERT_TRUE(engine.prefetch(job.blocks[0], block_bytes, nullptr));
  for (int i = 0; i < 10 && !is(0, "faulting"); ++i) engine.pump();
  ASSERT_TRUE(is(0, "faulting"));
  EXPECT_EQ(job.sim.counts(0).mapped_bytes, options.budget_bytes);
  if (arrives_first) job.wait_until(job.sim.clock().now_ns() + 10 * ms);
  EXPECT_EQ(is(0, "faulting"), !arrives_first);
  EXPECT_FALSE(is(0, "resident"));
  engine.check();
  for (size_t i : pinned) ASSERT_TRUE(engine.unpin(job.blocks[i]));
  if (arrives_first) job.settle();  // the hint holds still
  EXPECT_EQ(is(0, "resident"), arrives_first);
  EXPECT_TRUE(engine.stats().trouble.empty()) << "nothing is copied where nothing is mapped";
  ASSERT_TRUE(job.read(0));
  EXPECT_EQ(engine.stats().prefetched_bytes + engine.stats().faulted_bytes, block_bytes);
  engine.check();
}

INSTANTIATE_TEST_SUITE_P(arrives_first, EngineFaultInPart, testing::Bool());

/// Its memory is unmapped when what was copied there is there.
TEST(EngineFault, one_that_is_freed_is_copied_to_before_it_is_unmapped) {
  StoreJob job(with_ill_store());
  job.fill_all();
  Engine& engine = job.sim.engine(0);
  ASSERT_TRUE(engine.prefetch(job.blocks[0], block_bytes, nullptr));
  const uint64_t copies = job.sim.counts(0).copies, begin = job.sim.clock().now_ns();
  while (engine.stats().prefetched_bytes == 0) {
    ASSERT_LT(job.sim.clock().now_ns(), begin + second);
    engine.pump();
    job.sim.clock().wait(10'000);
  }
  ASSERT_STREQ(engine.find(job.blocks[0])->state, "faulting");
  ASSERT_TRUE(engine.free(job.blocks[0]));
  engine.pump();
  job.settle();
  EXPECT_GT(job.sim.counts(0).copies, copies);
  engine.check();
}

/// A hint has others leave, as much of them as it needs, and has what is wanted come.
TEST(EngineFault, a_hint_makes_room_for_what_it_names) {
  StoreJob job(with_ill_store());
  job.fill_all();
  Engine& engine = job.sim.engine(0);
  const uint64_t evictions = engine.stats().evictions;
  ASSERT_TRUE(engine.prefetch(job.blocks[1], block_bytes, nullptr));
  ASSERT_TRUE(engine.prefetch(job.blocks[0], block_bytes, nullptr));
  ASSERT_TRUE(engine.free(job.blocks[1]));  // wanted no more
  job.settle();
  EXPECT_STREQ(engine.find(job.blocks[0])->state, "resident");
  size_t there = 0;
  for (size_t i = 2; i < 8; ++i)
    there += engine.find(job.blocks[i])->state == std::string("resident");
  EXPECT_EQ(there, 2u);
  EXPECT_EQ(engine.stats().evictions, evictions + 1);
  EXPECT_EQ(engine.stats().prefetched_bytes, block_bytes);
  EXPECT_EQ(engine.stats().faulted_bytes, 0u);
  ASSERT_TRUE(job.read(0));
  engine.check();
}
