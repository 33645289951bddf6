// Blocks that the processor uses in host memory: the bytes are right wherever they were, and
// wherever they go from there. (What is refused: engine_on_host_refused_test.cpp.)
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "tests/allocator/engine/on_host_job.h"
#include "tests/allocator/engine/remaking_program.h"

using namespace firn;
using namespace firn::test;

namespace {

/// Three blocks fit on the device, eight in host memory.
SimulationOptions much_host() {
  SimulationOptions options = with_ill_store();
  options.host_bytes = 64u << 20;
  return options;
}

/// The program's kernel that writes it has not run yet.
TEST(EngineOnHost, work_that_writes_the_block_is_waited_for) {
  OnHostJob job(much_host());
  ASSERT_TRUE(job.make(100));
  ASSERT_EQ(job.state(0), "resident");
  job.read_there(0);
  EXPECT_EQ(job.state(0), "hosted");
  const EngineStats stats = job.engine().stats();
  EXPECT_EQ(stats.resident_bytes, 0u);
  EXPECT_EQ(stats.spilled_bytes, block_bytes);
  EXPECT_EQ(stats.host_uses, 1u);
  EXPECT_EQ(stats.host_use_bytes, block_bytes);
  job.end_all();
}

TEST(EngineOnHost, the_device_sees_what_the_processor_wrote) {
  OnHostJob job(much_host());
  ASSERT_TRUE(job.make(100));
  job.write_there(0);
  EXPECT_EQ(job.state(0), "hosted");
  ASSERT_TRUE(job.read_written(0));
  EXPECT_EQ(job.engine().stats().faulted_bytes, block_bytes);
  job.end_all();
}

TEST(EngineOnHost, nothing_crosses_the_link_for_a_block_that_is_in_host_memory) {
  OnHostJob job(much_host());
  ASSERT_TRUE(job.make(100));
  job.engine().spill_all();
  ASSERT_EQ(job.state(0), "hosted");
  const uint64_t maps = job.engine().stats().maps;
  for (int use = 0; use < 4; ++use) job.read_there(0);
  job.write_there(0);
  const EngineStats stats = job.engine().stats();
  EXPECT_EQ(stats.spilled_bytes, block_bytes) << "by spill_all() alone";
  EXPECT_EQ(stats.faulted_bytes + stats.prefetched_bytes, 0u);
  EXPECT_EQ(stats.maps, maps);
  EXPECT_EQ(stats.store_read_bytes, 0u);
  EXPECT_EQ(stats.host_uses, 5u);
  ASSERT_TRUE(job.read_written(0));
  job.end_all();
}

TEST(EngineOnHost, what_is_in_the_store_alone_is_read_from_there) {
  OnHostJob job(with_ill_store());
  job.fill_all();
  ASSERT_EQ(job.state(0), "spilled");
  const EngineStats before = job.engine().stats();
  job.read_there(0);
  EXPECT_EQ(job.state(0), "spilled");
  const EngineStats after = job.engine().stats();
  EXPECT_EQ(after.store_read_bytes - before.store_read_bytes, block_bytes);
  EXPECT_EQ(after.maps, before.maps);
  ASSERT_TRUE(job.read(0));
  job.end_all();
}

/// Its copy in the store is another one's: it may not be read again.
TEST(EngineOnHost, a_written_block_goes_on_to_the_store_anew) {
  OnHostJob job(with_ill_store());
  job.fill_all();
  for (size_t i = 0; i < 8; ++i) job.write_there(i);
  EXPECT_EQ(job.state(7), "hosted");
  job.settle();
  for (size_t i = 0; i < 8; ++i) {
    const Result<void> read = job.read_written(i);
    ASSERT_TRUE(read) << i << ": " << describe(read.error());
  }
  EXPECT_GT(job.engine().stats().store_read_bytes, 2 * block_bytes);
  job.end_all();
}

TEST(EngineOnHost, its_slots_are_given_back_before_it_is_written) {
  OnHostJob job(with_ill_store());
  job.fill_all();
  const size_t slots = job.sim.store()->stats().slots_in_use;
  Result<OnHost> there = job.begin(0, Access::write);
  ASSERT_TRUE(there) << describe(there.error());
  EXPECT_EQ(job.state(0), "hosted");
  EXPECT_EQ(job.sim.store()->stats().slots_in_use, slots - 3);
  job.settle();
  EXPECT_EQ(job.state(0), "hosted") << "what is being written is not written to the store";
  ASSERT_TRUE(job.engine().end_on_host(there->name));
  job.end_all();
}

/// (The store compares what it was given at the begin of a write with what is there at its end.)
TEST(EngineOnHost, writes_to_the_store_that_are_under_way_end_first) {
  SimulationOptions options = with_ill_store();
  options.store.latency_ns = 5 * ms;
  OnHostJob job(options);
  ASSERT_TRUE(job.make(100));
  ASSERT_TRUE(job.make(101));
  job.engine().spill_all();
  size_t i = 0;
  for (int round = 0; job.sim.store()->in_flight(0) == 0; ++round) {
    ASSERT_LT(round, 1000);
    if (job.blocks.size() < 8) {
      ASSERT_TRUE(job.make(100 + job.blocks.size()));
    }
    job.engine().pump();
    job.sim.clock().wait(10'000);
  }
  for (i = 0; i < job.blocks.size(); ++i) job.write_there(i);
  for (i = 0; i < job.blocks.size(); ++i) {
    ASSERT_TRUE(job.read_written(i)) << i;
  }
  job.end_all();
}

TEST(EngineOnHost, a_block_on_its_way_out_goes_on) {
  OnHostJob job(much_host());
  ASSERT_TRUE(job.make(100));
  ASSERT_TRUE(job.engine().cold(job.blocks[0], block_bytes));
  ASSERT_EQ(job.state(0), "spilling");
  job.write_there(0);
  EXPECT_EQ(job.engine().stats().spilled_bytes, block_bytes) << "copied once";
  ASSERT_TRUE(job.read_written(0));
  job.end_all();
}

TEST(EngineOnHost, a_block_on_its_way_in_arrives_first) {
  OnHostJob job(with_ill_store());
  job.fill_all();
  Engine& engine = job.engine();
  for (int i = 2; i < 8; ++i) {
    ASSERT_TRUE(engine.free(job.blocks[i]));
  }
  ASSERT_TRUE(engine.prefetch(job.blocks[0], block_bytes, nullptr));
  for (int round = 0; job.state(0) != "faulting"; ++round) {
    ASSERT_LT(round, 100) << job.state(0);
    engine.pump();
  }
  job.write_there(0);
  ASSERT_TRUE(job.read_written(0));
  job.end_all();
}

TEST(EngineOnHost, a_hint_does_not_bring_it_to_the_device_meanwhile) {
  OnHostJob job(much_host());
  ASSERT_TRUE(job.make(100));
  Result<OnHost> there = job.begin(0, Access::write);
  ASSERT_TRUE(there) << describe(there.error());
  const uint64_t maps = job.engine().stats().maps;
  ASSERT_TRUE(job.engine().prefetch(job.blocks[0], block_bytes, nullptr));
  for (int i = 0; i < 20; ++i) {
    job.engine().pump();
    job.sim.clock().wait(ms);
  }
  EXPECT_EQ(job.state(0), "hosted");
  EXPECT_EQ(job.engine().stats().maps, maps);
  Simulation::fill(*there, block_bytes, 200);
  ASSERT_TRUE(job.engine().end_on_host(there->name));
  job.settle();
  EXPECT_EQ(job.state(0), "resident") << "the hint acts then";
  ASSERT_TRUE(job.read_written(0));
  job.end_all();
}

TEST(EngineOnHost, a_touch_waits_for_its_end) {
  std::atomic<int> waits = 0;
  OnHostJob* made = nullptr;
  OnHost there;
  SimulationOptions options = much_host();
  options.on_wait = [&] {
    if (!made || there.name == 0 || ++waits < 10) return;
    Simulation::fill(there, block_bytes, 200);  // (the other thread goes on meanwhile)
    EXPECT_TRUE(made->engine().end_on_host(std::exchange(there.name, 0)));
  };
  OnHostJob job(options);
  ASSERT_TRUE(job.make(100));
  std::thread([&] {
    Result<OnHost> begun = job.begin(0, Access::write);
    ASSERT_TRUE(begun) << describe(begun.error());
    there = *begun;
  }).join();
  made = &job;
  ASSERT_TRUE(job.read_written(0));
  EXPECT_EQ(waits, 10);
  EXPECT_EQ(job.engine().stats().stalls, 1u);
  made = nullptr;
  job.end_all();
}

TEST(EngineOnHost, a_block_that_is_freed_meanwhile_ends_with_it) {
  OnHostJob job(much_host());
  ASSERT_TRUE(job.make(100));
  Result<OnHost> there = job.begin(0, Access::write);
  ASSERT_TRUE(there) << describe(there.error());
  ASSERT_TRUE(job.engine().free(job.blocks[0]));
  EXPECT_FALSE(job.engine().free(job.blocks[0])) << "once";
  job.settle();
  Simulation::fill(*there, block_bytes, 200);  // its memory is nobody else's
  EXPECT_EQ(job.engine().stats().host_used_bytes, block_bytes);
  ASSERT_TRUE(job.engine().end_on_host(there->name));
  job.settle();
  EXPECT_EQ(job.engine().stats().host_used_bytes, 0u);
  job.end_all();
}

TEST(EngineOnHost, the_engine_may_end_while_a_block_is_in_use_there) {
  OnHostJob job(much_host());
  ASSERT_TRUE(job.make(100));
  ASSERT_TRUE(job.begin(0, Access::write));
  job.sim.end_engine(0);
  EXPECT_EQ(job.sim.counts(0).host_registered_bytes, 0u);
}

TEST(EngineOnHost, sums_are_taken_of_what_was_written_there) {
  SimulationOptions options = much_host();
  options.sums = true;
  OnHostJob job(options);
  ASSERT_TRUE(job.make(100));
  job.engine().spill_all();
  job.settle();
  EXPECT_EQ(job.engine().stats().summed_bytes, block_bytes) << "as it came";
  job.write_there(0);
  job.settle();
  EXPECT_EQ(job.engine().stats().summed_bytes, 3 * block_bytes) << "compared, and summed anew";
  ASSERT_TRUE(job.read_written(0));
  EXPECT_EQ(job.engine().stats().summed_bytes, 4 * block_bytes) << "compared";
  EXPECT_EQ(job.engine().stats().host_corrupt, 0u);
  EXPECT_EQ(job.engine().stats().lost_blocks, 0u);
  job.end_all();
}

TEST(EngineOnHost, a_dropped_block_is_made_again_and_its_recipe_ends) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const RemakingProgram::Dropped made = program.drop_one();
  Engine& engine = program.engine();
  for (const Access access : {Access::read, Access::write}) {
    Result<OnHost> there = engine.on_host(made.out, access);
    ASSERT_TRUE(there) << describe(there.error());
    EXPECT_EQ(program.made, std::vector{made.recipe});
    EXPECT_EQ(engine.stats().recipes, 0u);
    ASSERT_TRUE(engine.end_on_host(there->name));
    engine.check();
    program.read(made.out);
  }
  program.settle();
}

/// Who is made from it is made first: with the input as it was.
TEST(EngineOnHost, an_input_that_is_written_there_has_its_readers_back_first) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const RemakingProgram::Dropped made = program.drop_one();
  Engine& engine = program.engine();
  {
    Result<OnHost> there = engine.on_host(made.in, Access::read);
    ASSERT_TRUE(there) << describe(there.error());
    EXPECT_EQ(engine.stats().recipes, 1u) << "a read leaves it as it is";
    ASSERT_TRUE(engine.end_on_host(there->name));
  }
  Result<OnHost> there = engine.on_host(made.in, Access::write);
  ASSERT_TRUE(there) << describe(there.error());
  EXPECT_EQ(program.made, std::vector{made.recipe});
  Simulation::fill(*there, 4 * MiB, 77);
  ASSERT_TRUE(engine.end_on_host(there->name));
  program.read(made.out);
  program.settle();
}

}  // namespace
