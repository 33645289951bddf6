// Uses in host memory that are refused, and what fails on the way there.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "tests/allocator/engine/on_host_job.h"
#include "tests/allocator/engine/refusing_store.h"

using namespace firn;
using namespace firn::test;

namespace {

SimulationOptions much_host() {
  SimulationOptions options = with_ill_store();
  options.host_bytes = 64u << 20;
  return options;
}

void expect_refused(const Result<OnHost>& answer, Code code, const std::string& words) {
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, code) << describe(answer.error());
  EXPECT_NE(answer.error().text.find(words), std::string::npos) << answer.error().text;
}

TEST(EngineOnHostRefused, what_is_no_block_that_leaves_by_itself) {
  OnHostJob job(much_host());
  Engine& engine = job.engine();
  int outside = 0;
  expect_refused(engine.on_host(&outside, Access::read), Code::invalid_argument,
                 "outside Firn's live blocks");
  ASSERT_TRUE(job.make(100));
  ASSERT_TRUE(engine.free(job.blocks[0]));
  expect_refused(job.begin(0, Access::read), Code::invalid_argument, "outside Firn's live blocks");
  Result<void*> small = engine.allocate(4096, nullptr);
  ASSERT_TRUE(small);
  expect_refused(engine.on_host(*small, Access::read), Code::invalid_argument, "below 1 MiB");
  Result<void*> unseen = engine.allocate(block_bytes, nullptr);
  ASSERT_TRUE(unseen);
  expect_refused(engine.on_host(*unseen, Access::read), Code::invalid_argument,
                 "no operator was seen to use it");
  ASSERT_TRUE(engine.free(*unseen));
  ASSERT_TRUE(job.make(101));
  ASSERT_TRUE(engine.pin(job.blocks[1], "pinned by a test"));
  expect_refused(job.begin(1, Access::read), Code::invalid_argument, "pinned by a test");
  ASSERT_TRUE(engine.unpin(job.blocks[1]));
  job.read_there(1);
  EXPECT_FALSE(engine.end_on_host(12345));
}

TEST(EngineOnHostRefused, within_an_operator_and_where_nothing_leaves) {
  OnHostJob job(much_host());
  Engine& engine = job.engine();
  ASSERT_TRUE(job.make(100));
  Result<Hold> hold = engine.touch(job.blocks[0], nullptr, Access::read);
  ASSERT_TRUE(hold);
  expect_refused(job.begin(0, Access::read), Code::invalid_argument, "within an operator");
  engine.release(*hold, nullptr);
  engine.stop_spilling(true);
  expect_refused(job.begin(0, Access::read), Code::invalid_argument, "spilling is stopped");
  engine.stop_spilling(false);
  job.read_there(0);
}

TEST(EngineOnHostRefused, a_second_use_and_a_touch_by_the_same_thread) {
  OnHostJob job(much_host());
  ASSERT_TRUE(job.make(100));
  Result<OnHost> there = job.begin(0, Access::read);
  ASSERT_TRUE(there) << describe(there.error());
  expect_refused(job.begin(0, Access::read), Code::invalid_argument, "in use there already");
  const Result<void> touched = job.read(0);
  ASSERT_FALSE(touched);
  EXPECT_NE(touched.error().text.find("end_on_host() comes first"), std::string::npos);
  ASSERT_TRUE(job.engine().end_on_host(there->name));
  EXPECT_FALSE(job.engine().end_on_host(there->name)) << "once";
  ASSERT_TRUE(job.read(0));
}

TEST(EngineOnHostRefused, host_memory_that_cannot_hold_it) {
  SimulationOptions options = with_ill_store();
  options.host_bytes = 4u << 20;  // two pieces of the three
  OnHostJob job(options);
  job.fill_all();
  expect_refused(job.begin(0, Access::read), Code::host_out_of_memory, "firn_host");
  EXPECT_EQ(job.state(0), "spilled");
  ASSERT_TRUE(job.read(0)) << "it comes to the device all the same";
}

/// Nobody waits for uses of others: who holds two of them would wait for itself.
TEST(EngineOnHostRefused, host_memory_that_other_uses_hold) {
  OnHostJob job(with_ill_store());
  job.fill_all();
  Result<OnHost> one = job.begin(0, Access::write), other = job.begin(1, Access::read);
  ASSERT_TRUE(one && other);
  expect_refused(job.begin(2, Access::read), Code::host_out_of_memory,
                 "12MiB are in use there");
  ASSERT_TRUE(job.engine().end_on_host(one->name));
  job.read_there(2);
  ASSERT_TRUE(job.engine().end_on_host(other->name));
  ASSERT_TRUE(job.read(0));
}

/// Copies of other blocks that cannot go on to a store: there is none.
TEST(EngineOnHostRefused, host_memory_that_is_full_for_good) {
  SimulationOptions options = with_ill_store();
  options.with_store = false;
  OnHostJob job(options);
  for (uint64_t i = 0; job.make(100 + i); ++i) {
  }
  size_t here = 0;
  while (job.state(here) != "resident") ++here;
  const uint64_t before = job.sim.clock().now_ns();
  expect_refused(job.begin(here, Access::read), Code::host_out_of_memory, "no firn_dir is set");
  EXPECT_LT(job.sim.clock().now_ns() - before, second);
  EXPECT_EQ(job.state(here), "resident");
  ASSERT_TRUE(job.read(here));
}

/// The whole of it is held by uses, and a block that is on the device has nowhere to go.
TEST(EngineOnHostRefused, a_block_on_the_device_where_uses_hold_all_of_it) {
  OnHostJob job(with_ill_store());
  job.fill_all();
  Result<OnHost> one = job.begin(0, Access::write), other = job.begin(1, Access::read);
  ASSERT_TRUE(one && other);
  size_t here = 2;
  while (job.state(here) != "resident") ++here;
  Result<Hold> hold = job.engine().touch(job.blocks[here], nullptr, Access::write);
  ASSERT_TRUE(hold);  // (so that it has no copy)
  ASSERT_TRUE(job.sim.fill(0, job.blocks[here], block_bytes, 100 + here, nullptr));
  job.engine().release(*hold, nullptr);
  const uint64_t before = job.sim.clock().now_ns();
  expect_refused(job.begin(here, Access::read), Code::host_out_of_memory,
                 "12MiB are in use there");
  EXPECT_LT(job.sim.clock().now_ns() - before, second);
  EXPECT_EQ(job.state(here), "resident");
  ASSERT_TRUE(job.engine().end_on_host(one->name));
  ASSERT_TRUE(job.engine().end_on_host(other->name));
  job.read_there(here);
}

struct RefusingJob {
  RefusingStore* store = nullptr;
  OnHostJob job;
  explicit RefusingJob(SimulationOptions options) : job(with(options, store)) {}
  static SimulationOptions with(SimulationOptions options, RefusingStore*& store) {
    options.in_front_of_store = [&store](Store& behind) {
      auto made = std::make_unique<RefusingStore>(behind);
      store = made.get();
      return made;
    };
    return options;
  }
};

/// With firn_verify: who uses it is not given other bytes than it had.
TEST(EngineOnHostRefused, a_copy_in_host_memory_that_has_changed_is_lost) {
  SimulationOptions options = much_host();
  options.sums = true;
  OnHostJob job(options);
  ASSERT_TRUE(job.make(100));
  std::byte* at = nullptr;
  {
    Result<OnHost> there = job.begin(0, Access::read);
    ASSERT_TRUE(there) << describe(there.error());
    at = there->pieces[1].data;
    ASSERT_TRUE(job.engine().end_on_host(there->name));
  }
  at[12345] ^= std::byte{1};
  const Result<OnHost> answer = job.begin(0, Access::write);
  ASSERT_FALSE(answer);
  EXPECT_EQ(job.state(0), "lost");
  EXPECT_EQ(job.engine().stats().host_corrupt, 1u);
  EXPECT_EQ(job.engine().stats().lost_blocks, 1u);
  job.end_all();
}

TEST(EngineOnHostRefused, what_is_wrong_in_the_store_is_lost) {
  RefusingJob refusing(with_ill_store());
  OnHostJob& job = refusing.job;
  job.fill_all();
  refusing.store->reads_spoilt = 1;
  const Result<OnHost> answer = job.begin(0, Access::write);
  ASSERT_FALSE(answer);
  EXPECT_EQ(job.state(0), "lost");
  EXPECT_EQ(job.engine().stats().lost_blocks, 1u);
  EXPECT_EQ(job.engine().stats().host_uses, 0u);
  expect_refused(job.begin(0, Access::read), Code::lost, "is lost");
  job.engine().check();
  job.read_there(1);
  job.end_all();
}

TEST(EngineOnHostRefused, what_cannot_be_read_for_so_long_stays_where_it_is) {
  SimulationOptions options = with_ill_store();
  options.store.reads_fail_from_ns = 2 * second;
  options.store.reads_fail_until_ns = 12 * second;
  OnHostJob job(options);
  job.fill_all();
  job.wait_until(2 * second);
  expect_refused(job.begin(0, Access::read), Code::lost, "firn_io_patience");
  EXPECT_EQ(job.state(0), "spilled");
  EXPECT_EQ(job.engine().stats().lost_blocks, 1u);
  job.wait_until(14 * second);
  job.read_there(0);
  EXPECT_EQ(job.engine().stats().lost_blocks, 0u) << "it was read at last";
  job.end_all();
}

TEST(EngineOnHostRefused, a_read_that_fails_now_and_then_is_tried_again) {
  RefusingJob refusing(with_ill_store());
  OnHostJob& job = refusing.job;
  job.fill_all();
  refusing.store->reads_refused = 2;
  job.read_there(0);
  EXPECT_EQ(refusing.store->reads_refused, 0u);
  EXPECT_EQ(job.engine().stats().lost_blocks, 0u);
  job.end_all();
}

TEST(EngineOnHostRefused, a_driver_that_refuses_the_copy_out) {
  OnHostJob job(much_host());
  ASSERT_TRUE(job.make(100));
  job.sim.gpu().fail_from("cuMemcpyDtoHAsync", 1, CUDA_ERROR_UNKNOWN);
  expect_refused(job.begin(0, Access::read), Code::driver, "could not be copied out");
  job.sim.gpu().fail_at("cuMemcpyDtoHAsync", 0, CUDA_SUCCESS);
  job.read_there(0);
  ASSERT_TRUE(job.read(0));
}

}  // namespace
