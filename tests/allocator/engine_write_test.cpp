// Writes that do not begin, that are not answered, and what is said of them.
#include <gtest/gtest.h>

#include "tests/allocator/refusing_store.h"
#include "tests/allocator/store_job.h"

using namespace firn;
using namespace firn::test;

TEST(EngineWrite, one_that_does_not_begin_is_tried_again) {
  RefusingStore* store = nullptr;
  SimulationOptions options = with_ill_store();
  options.in_front_of_store = [&](Store& behind) {
    auto made = std::make_unique<RefusingStore>(behind);
    store = made.get();
    store->writes_refused = 2;
    return made;
  };
  StoreJob job(options);
  job.fill_all();
  EXPECT_EQ(store->writes_refused, 0u);
  EXPECT_LT(job.sim.clock().now_ns(), second);
  EXPECT_TRUE(said(job.sim.engine(0).stats(), "not begun, in a test"));
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(job.read(i)) << i;
  for (void* block : job.blocks) ASSERT_TRUE(job.sim.engine(0).free(block));
  job.sim.synchronize();
  job.settle();
  EXPECT_EQ(job.sim.store()->stats().slots_in_use, 0u);
  EXPECT_EQ(job.sim.engine(0).stats().host_used_bytes, 0u);
}

TEST(EngineWrite, a_store_that_does_not_answer_for_long_is_told_of) {
  for (const uint64_t answers_after_s : {25, 40}) {
    SimulationOptions options = with_ill_store();
    options.store.latency_ns = answers_after_s * second;
    StoreJob job(options);
    job.fill_all();
    const bool told = answers_after_s == 40;
    EXPECT_EQ(said(job.sim.engine(0).stats(), "a write has been without an answer for 30 s"), told);
    const Result<void> read = job.read(0);
    EXPECT_TRUE(read) << describe(read.error());
    EXPECT_EQ(said(job.sim.engine(0).stats(), "a read has been without an answer for 30 s"), told);
    EXPECT_EQ(job.sim.engine(0).stats().trouble.empty(), !told);
  }
}
