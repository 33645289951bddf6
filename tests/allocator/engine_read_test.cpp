// Reads that do not begin, that nobody waits for any more, and that find nothing but wrong bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "tests/allocator/refusing_store.h"
#include "tests/allocator/store_job.h"

using namespace firn;
using namespace firn::test;

namespace {

/// The disk is ill from a moment that every job of fill_all() has reached.
constexpr uint64_t ill_from = 2 * second;

struct RefusingJob {
  RefusingStore* store = nullptr;
  StoreJob job;
  explicit RefusingJob(SimulationOptions options = with_ill_store()) : job(with(options, store)) {}

  static SimulationOptions with(SimulationOptions options, RefusingStore*& store) {
    options.in_front_of_store = [&store](Store& behind) {
      auto made = std::make_unique<RefusingStore>(behind);
      store = made.get();
      return made;
    };
    return options;
  }
};

}  // namespace

TEST(EngineRead, one_that_does_not_begin_is_tried_again) {
  RefusingJob refusing;
  StoreJob& job = refusing.job;
  job.fill_all();
  refusing.store->reads_refused = 1;
  const Result<void> read = job.read(0);
  ASSERT_TRUE(read) << describe(read.error());
  EXPECT_EQ(refusing.store->reads_refused, 0u);
  EXPECT_LT(job.waited_ns, second);
  EXPECT_EQ(job.sim.engine(0).stats().lost_blocks, 0u);
  job.sim.engine(0).check();
}

TEST(EngineRead, an_ill_disk_is_asked_ever_more_seldom) {
  SimulationOptions options = with_ill_store();
  options.io_patience_ns = 60 * second;
  options.store.reads_fail_from_ns = ill_from;
  options.store.reads_fail_until_ns = ill_from + 20 * second;
  RefusingJob refusing(options);
  StoreJob& job = refusing.job;
  job.fill_all();
  job.wait_until(ill_from);
  refusing.store->reads = 0;
  const Result<void> read = job.read(0);
  ASSERT_TRUE(read) << describe(read.error());
  EXPECT_GE(job.waited_ns, 20 * second);
  const unsigned pieces = 3, doubled = 10, longest = 21;  // pauses; up to a second, of a second
  EXPECT_LE(refusing.store->reads, pieces * (doubled + longest + 1));
  EXPECT_GE(refusing.store->reads, pieces * longest);
}

/// Copies to the device are refused, time and again: the fault is over when the rest of its reads
/// come back, and one of those is wrong.
TEST(EngineRead, what_nobody_waits_for_any_more_is_not_lost) {
  RefusingJob refusing;
  StoreJob& job = refusing.job;
  job.fill_all();
  Engine& engine = job.sim.engine(0);
  job.sim.gpu().fail_from("cuMemcpyHtoDAsync", 1, CUDA_ERROR_UNKNOWN);
  const Result<void> refused = job.read(0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::driver) << describe(refused.error());
  ASSERT_GT(job.sim.store()->in_flight(0), 0u);
  refusing.store->reads_corrupt = 1;
  while (job.sim.store()->in_flight(0) > 0) {
    engine.pump();
    job.sim.clock().wait(ms);
  }
  engine.pump();
  EXPECT_EQ(refusing.store->reads_corrupt, 0u);
  EXPECT_STREQ(engine.find(job.blocks[0])->state, "spilled");
  EXPECT_EQ(engine.stats().lost_blocks, 0u);
  job.sim.gpu().fail_at("cuMemcpyHtoDAsync", 0, CUDA_SUCCESS);
  const Result<void> read = job.read(0);
  EXPECT_TRUE(read) << "it is read again: " << describe(read.error());
  engine.check();
}

TEST(EngineRead, what_could_not_be_read_and_is_lost_then_counts_once) {
  SimulationOptions options = with_ill_store();
  options.store.reads_fail_from_ns = ill_from;
  options.store.reads_fail_until_ns = ill_from + 10 * second;
  RefusingJob refusing(options);
  StoreJob& job = refusing.job;
  job.fill_all();
  job.wait_until(ill_from);
  ASSERT_FALSE(job.read(0));
  EXPECT_EQ(job.sim.engine(0).stats().lost_blocks, 1u);
  EXPECT_STREQ(job.sim.engine(0).find(job.blocks[0])->state, "spilled");
  job.wait_until(options.store.reads_fail_until_ns + 2 * second);
  refusing.store->reads_corrupt = 1;
  const Result<void> lost = job.read(0);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, Code::lost);
  EXPECT_STREQ(job.sim.engine(0).find(job.blocks[0])->state, "lost");
  EXPECT_EQ(job.sim.engine(0).stats().lost_blocks, 1u);
}

TEST(EngineRead, waits_for_host_memory_that_others_will_give) {
  SimulationOptions options = with_ill_store();
  options.host_bytes = 4u << 20;  // two pieces of the three
  StoreJob job(options);
  job.fill_all();
  for (size_t i = 0; i < 8; ++i) {
    const Result<void> read = job.read(i);
    ASSERT_TRUE(read) << i << ": " << describe(read.error());
  }
  EXPECT_EQ(job.sim.counts(0).host_registered_bytes, options.host_bytes);
}

/// Also where the store is full, and nothing else is under way: host memory has room for it.
TEST(EngineRead, leaves_no_host_memory_in_use) {
  SimulationOptions options = with_ill_store();
  options.host_bytes = 24u << 20;
  options.store.capacity_bytes = 2 * block_bytes;
  StoreJob job(options);
  Engine& engine = job.sim.engine(0);
  for (uint64_t i = 0; job.make(100 + i); ++i) {}
  ASSERT_TRUE(said(engine.stats(), "eviction stops"));
  const auto one = [&](const char* where) {
    return *std::find_if(job.blocks.begin(), job.blocks.end(), [&](void* block) {
      const std::optional<BlockInfo> found = engine.find(block);
      return found && found->state == std::string(where);
    });
  };
  void* const away = one("spilled");
  ASSERT_TRUE(engine.free(one("resident")));
  ASSERT_EQ(job.sim.store()->in_flight(0), 0u);
  Result<Hold> hold = engine.touch(away, nullptr, Access::read);
  ASSERT_TRUE(hold) << describe(hold.error());
  engine.release(*hold, nullptr);
  for (void* block : job.blocks)
    if (engine.find(block)) {
      ASSERT_TRUE(engine.free(block));
    }
  job.sim.synchronize();
  job.settle();
  EXPECT_EQ(engine.stats().host_used_bytes, 0u);
  EXPECT_EQ(job.sim.store()->stats().slots_in_use, 0u);
  engine.check();
}
