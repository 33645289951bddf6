// Reads that do not begin, that nobody waits for any more, and that find nothing but wrong bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "tests/allocator/engine/refusing_store.h"
#include "tests/allocator/engine/store_job.h"

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
  EXPECT_EQ(job.sim.engine(0).stats().trouble.size(), 1u) << "said once, not of each piece";
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
  refusing.store->reads_spoilt = 1;
  while (job.sim.store()->in_flight(0) > 0) {
    engine.pump();
    job.sim.clock().wait(ms);
  }
  engine.pump();
  EXPECT_EQ(refusing.store->reads_spoilt, 0u);
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
  refusing.store->reads_spoilt = 1;
  const Result<void> lost = job.read(0);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, Code::lost);
  EXPECT_STREQ(job.sim.engine(0).find(job.blocks[0])->state, "lost");
  EXPECT_EQ(job.sim.engine(0).stats().lost_blocks, 1u);
}

/// No try will read it: the program has closed the file.
TEST(EngineRead, what_is_gone_is_lost_at_once) {
  RefusingJob refusing;
  StoreJob& job = refusing.job;
  job.fill_all();
  refusing.store->reads_spoilt = 1;
  refusing.store->spoilt = Code::lost;
  const Result<void> lost = job.read(0);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, Code::lost);
  EXPECT_LT(job.waited_ns, second);
  EXPECT_STREQ(job.sim.engine(0).find(job.blocks[0])->state, "lost");
  EXPECT_TRUE(job.read(1));
}

TEST(EngineRead, a_store_without_sums_serves_who_compares_them) {
  SimulationOptions options = with_ill_store();
  options.sums = true;
  RefusingJob refusing(options);
  refusing.store->tells_sums = false;
  StoreJob& job = refusing.job;
  job.fill_all();
  for (size_t i = 0; i < 8; ++i) {
    const Result<void> read = job.read(i);
    ASSERT_TRUE(read) << i << ": " << describe(read.error());
  }
}

/// Copies of its other pieces are under way: their target is not unmapped before they are over.
TEST(EngineRead, a_refused_copy_waits_for_those_that_were_made) {
  SimulationOptions options = with_ill_store();
  options.host_bytes = 64u << 20;
  StoreJob job(options);
  ASSERT_TRUE(job.make(100));
  Engine& engine = job.sim.engine(0);
  engine.spill_all();
  ASSERT_STREQ(engine.find(job.blocks[0])->state, "hosted");
  job.sim.gpu().fail_at("cuMemcpyHtoDAsync", 3, CUDA_ERROR_UNKNOWN);
  const Result<void> read = job.read(0);
  EXPECT_TRUE(read) << describe(read.error());
  EXPECT_TRUE(said(engine.stats(), "the driver refused a copy to the device; Firn tries again"));
  EXPECT_GE(job.waited_ns, 2 * (2u << 20) / 16) << "two copies, 16 bytes a nanosecond";
  engine.check();
}

TEST(EngineRead, of_a_dead_device_nothing_is_tried_again) {
  StoreJob job(with_ill_store());
  job.fill_all();
  Engine& engine = job.sim.engine(0);
  job.sim.gpu().fail_at("cuMemcpyHtoDAsync", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  const Result<void> read = job.read(0);
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().text.find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos);
  EXPECT_FALSE(said(engine.stats(), "tries again"));
  EXPECT_STREQ(engine.find(job.blocks[0])->state, "faulting") << "nothing is unmapped any more";
  EXPECT_EQ(engine.stats().lost_blocks, 0u);
}

/// There is room for a third of it: the rest is not mapped when its copy is refused.
TEST(EngineRead, a_part_whose_copy_is_refused_goes_back_alone) {
  SimulationOptions options = with_ill_store();
  options.budget_bytes += 2u << 20;
  options.span_bytes = 2u << 20;
  StoreJob job(options);
  job.fill_all();
  Engine& engine = job.sim.engine(0);
  for (size_t i = 1; i < 8; ++i)
    if (engine.find(job.blocks[i])->state == std::string("resident")) {
      ASSERT_TRUE(engine.pin(job.blocks[i], "a test"));
    }
  ASSERT_STREQ(engine.find(job.blocks[0])->state, "spilled");
  job.sim.gpu().fail_from("cuMemcpyHtoDAsync", 1, CUDA_ERROR_UNKNOWN);
  ASSERT_TRUE(engine.prefetch(job.blocks[0], block_bytes, nullptr));
  const char* const tries = "refused a copy to the device; Firn tries again";
  for (int i = 0; i < 20 && !said(engine.stats(), tries); ++i) {
    engine.pump();
    job.sim.clock().wait(ms);
  }
  EXPECT_TRUE(said(engine.stats(), tries));
  engine.check();
  job.sim.gpu().fail_at("cuMemcpyHtoDAsync", 0, CUDA_SUCCESS);
  for (size_t i = 1; i < 8; ++i) (void)engine.unpin(job.blocks[i]);
  EXPECT_TRUE(job.read(0));
  engine.check();
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
