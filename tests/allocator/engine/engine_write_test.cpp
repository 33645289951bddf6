// Writes that do not begin, that are not answered, and what is said of them.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/allocator/engine/refusing_store.h"
#include "tests/allocator/engine/store_job.h"

using namespace firn;
using namespace firn::test;

namespace {

SimulationOptions with_host_memory(uint64_t bytes) {
  SimulationOptions options = with_ill_store();
  options.host_bytes = bytes;
  return options;
}

uint64_t written(StoreJob& job) { return job.sim.store()->stats().written_bytes; }

std::string state(StoreJob& job, size_t i) { return job.sim.engine(0).find(job.blocks[i])->state; }

}  // namespace

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
    EXPECT_EQ(said(job.sim.engine(0).stats(),
                   "a write of a spill file has had no answer for 30 s"), told);
    const Result<void> read = job.read(0);
    EXPECT_TRUE(read) << describe(read.error());
    EXPECT_EQ(said(job.sim.engine(0).stats(),
                   "a read of a spill file has had no answer for 30 s"), told);
    EXPECT_EQ(job.sim.engine(0).stats().trouble.empty(), !told);
  }
}

/// Values that are freed before the disk has come to them are never written.
TEST(EngineWrite, one_that_has_not_begun_is_withdrawn_when_its_block_is_freed) {
  constexpr uint64_t piece_bytes = 2u << 20;
  SimulationOptions options = with_host_memory(64u << 20);
  options.store.write_bytes_s = piece_bytes;  // one a second
  StoreJob job(options);
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(job.make(100 + i));
  Engine& engine = job.sim.engine(0);
  engine.spill_all();
  const uint64_t before = written(job);
  ASSERT_GE(engine.stats().in_flight_bytes, 4 * piece_bytes);
  for (void* block : job.blocks) ASSERT_TRUE(engine.free(block));
  job.sim.synchronize();
  job.settle();
  EXPECT_LE(written(job), before + piece_bytes) << "the one that had begun";
  EXPECT_EQ(job.sim.store()->stats().slots_in_use, 0u);
  EXPECT_EQ(engine.stats().host_used_bytes, 0u);
}

/// A file that grows has room soon: nothing is said of it, and nothing waits for a pause.
TEST(EngineWrite, a_slot_that_is_not_to_be_had_at_once_is_asked_for_again) {
  RefusingStore* store = nullptr;
  SimulationOptions options = with_ill_store();
  options.in_front_of_store = [&](Store& behind) {
    auto made = std::make_unique<RefusingStore>(behind);
    store = made.get();
    store->slots_busy = 20;
    return made;
  };
  StoreJob job(options);
  job.fill_all();
  EXPECT_EQ(store->slots_busy, 0u);
  EXPECT_TRUE(job.sim.engine(0).stats().trouble.empty());
  EXPECT_LT(job.sim.clock().now_ns(), second);
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(job.read(i)) << i;
}

/// One that was refused long before, and was wanted by nobody then, is no outage of that length.
TEST(EngineWrite, a_refusal_is_not_held_against_one_much_later) {
  constexpr uint64_t later = 20 * second;
  RefusingStore* store = nullptr;
  SimulationOptions options = with_ill_store();
  options.store.writes_fail_from_ns = later;
  options.store.writes_fail_until_ns = later + 2 * second;
  options.in_front_of_store = [&](Store& behind) {
    auto made = std::make_unique<RefusingStore>(behind);
    store = made.get();
    store->writes_refused = 1000;
    return made;
  };
  StoreJob job(options);
  Engine& engine = job.sim.engine(0);
  while (!said(engine.stats(), "not begun, in a test")) ASSERT_TRUE(job.make(1));
  for (void* block : job.blocks) ASSERT_TRUE(engine.free(block));
  job.blocks.clear();
  job.sim.synchronize();
  job.settle();
  store->writes_refused = 0;
  job.wait_until(later);
  for (uint64_t i = 0; i < 8; ++i) {
    const Result<void> made = job.make(100 + i);
    ASSERT_TRUE(made) << i << ": " << describe(made.error());
  }
  EXPECT_GE(job.sim.clock().now_ns(), later + 2 * second);
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(job.read(i)) << i;
}

/// Nobody waits for a full store; where it is ill when it has room again, that begins anew.
TEST(EngineWrite, a_full_store_that_is_ill_then_is_waited_for) {
  constexpr uint64_t later = 20 * second;
  SimulationOptions options = with_ill_store();
  options.store.full_until_ns = later;
  options.store.writes_fail_from_ns = later;
  options.store.writes_fail_until_ns = later + 3 * second;
  StoreJob job(options);
  uint64_t count = 0;
  while (job.make(100 + count)) ++count;
  job.blocks.resize(count);
  EXPECT_LT(job.sim.clock().now_ns(), second) << "of its being full";
  job.wait_until(later + 3 * second / 2);
  while (count < 8) {
    const Result<void> made = job.make(100 + count++);
    ASSERT_TRUE(made) << count << ": " << describe(made.error());
  }
  EXPECT_GE(job.sim.clock().now_ns(), later + 3 * second);
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(job.read(i)) << i;
}

TEST(EngineWrite, up_to_half_of_host_memory_is_kept_there) {
  StoreJob job(with_host_memory(24u << 20));
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(job.make(100 + i));
  Engine& engine = job.sim.engine(0);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(engine.cold(job.blocks[i], block_bytes));
    job.settle();
    EXPECT_EQ(written(job), i < 2 ? 0u : 3 * block_bytes);  // half are two
    EXPECT_EQ(state(job, i), i < 2 ? "hosted" : "spilled");
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(job.read(i));
}

TEST(EngineWrite, what_came_back_is_not_worth_a_write) {
  StoreJob job(with_host_memory(16u << 20));
  for (uint64_t i = 0; i < 2; ++i) ASSERT_TRUE(job.make(100 + i));
  Engine& engine = job.sim.engine(0);
  ASSERT_TRUE(engine.cold(job.blocks[0], block_bytes));
  job.settle();
  ASSERT_TRUE(job.read(0));
  EXPECT_EQ(engine.stats().host_used_bytes, block_bytes) << "its copy stays while there is room";
  ASSERT_TRUE(engine.cold(job.blocks[1], block_bytes));
  job.settle();
  EXPECT_EQ(written(job), 0u);
  EXPECT_LE(engine.stats().host_used_bytes, 8u << 20);
  EXPECT_EQ(state(job, 0), "resident");
  EXPECT_EQ(state(job, 1), "hosted");
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(job.read(i));
}

/// However little it is: others need the memory.
TEST(EngineWrite, what_lies_in_memory_that_is_given_back_is_written) {
  HostRoom room;
  room.extent_bytes = 16u << 20;
  SimulationOptions options = with_host_memory(64u << 20);
  options.host_room = &room;
  StoreJob* waiting = nullptr;
  options.on_wait = [&] {
    if (waiting) waiting->make_host_memory();
  };
  StoreJob job(options);
  waiting = &job;
  ASSERT_TRUE(job.make(100));
  Engine& engine = job.sim.engine(0);
  ASSERT_TRUE(engine.cold(job.blocks[0], block_bytes));
  job.settle();
  ASSERT_EQ(state(job, 0), "hosted");
  EXPECT_EQ(written(job), 0u);
  room.left_bytes = 0;
  for (int round = 0; round < 20; ++round) {
    (void)engine.give_host_back(true);
    job.settle();
  }
  EXPECT_EQ(state(job, 0), "spilled");
  EXPECT_EQ(written(job), block_bytes);
  EXPECT_EQ(engine.stats().host_used_bytes, 0u);
  room.left_bytes = UINT64_MAX;
  EXPECT_TRUE(job.read(0));
}
