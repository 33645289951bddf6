// Blocks that are made again, and what ends a recipe: writes and frees of its inputs, and of the
// block itself.
#include <gtest/gtest.h>

#include <vector>

#include "tests/allocator/engine/remaking_program.h"

using namespace firn;
using namespace firn::test;

TEST(EngineRecipes, a_write_of_an_input_makes_what_is_away_first) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const CUstream side = sim.make_stream(0);
  void* in = program.make(4 * MiB);
  void* out = program.make(4 * MiB);
  void* there = program.make(4 * MiB);
  program.write(in, 1);
  const uint64_t id = program.run(out, {in});
  program.away(out);
  const uint64_t other = program.run(there, {in});
  program.write(in, 2, side);
  EXPECT_EQ(program.made, std::vector{id}) << "what is on the device is not made again";
  EXPECT_EQ(program.last_stream, side);
  EXPECT_EQ(program.engine().take_ended_recipes(), (std::vector{id, other}));
  EXPECT_EQ(program.engine().stats().recipes, 0u);
  program.away(out, "hosted");
  program.read(out);
  program.read(there);
  program.read(in);
  program.settle();
}

TEST(EngineRecipes, a_row_of_readers_survives_a_write_of_its_first_input) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const auto [first, middle, last] = program.make_row();
  const uint64_t one = program.run(middle, {first});
  program.run(last, {middle});
  program.away(last);
  EXPECT_EQ(program.state(middle), "dropped");
  program.write(first, 2);
  EXPECT_EQ(program.made, std::vector{one});
  EXPECT_EQ(program.state(last), "dropped") << "its input is there, and has a copy when it leaves";
  program.engine().spill_all();
  EXPECT_EQ(program.state(middle), "hosted");
  program.read(last);
  program.read(middle);
  program.settle();
}

TEST(EngineRecipes, a_write_of_the_block_itself_ends_its_recipe) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const auto [in, out, recipe] = program.drop_one();
  program.write(out, 5);
  EXPECT_EQ(program.made.size(), 1u) << "a write may be of a part";
  program.away(out, "hosted");
  program.read(out);
  EXPECT_EQ(program.made.size(), 1u);
  program.settle();
}

TEST(EngineRecipes, an_input_that_is_freed_is_kept_while_it_is_needed) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const auto [in, out, id] = program.drop_one();
  program.free(in);
  EXPECT_FALSE(program.engine().free(in)) << "for the program it is gone";
  EXPECT_EQ(program.state(in), "gone");
  std::vector<void*> others;
  for (int i = 0; i < 4; ++i) {  // its address is given to nobody
    others.push_back(program.make(4 * MiB));
    EXPECT_NE(others.back(), in);
    program.write(others.back(), 10 + i);
  }
  program.read(out);
  EXPECT_EQ(program.made, std::vector{id});
  program.engine().check();
  // Now that the block is there, the input goes; from here on the block moves.
  program.settle();
  EXPECT_EQ(program.engine().stats().recipes, 0u);
  EXPECT_EQ(program.engine().take_ended_recipes(), std::vector{id});
  program.away(out, "hosted");
  program.read(out);
  for (void* other : others) program.free(other);
  program.free(out);
  program.engine().trim();
  program.engine().check();
  EXPECT_EQ(sim.counts(0).frame_bytes, 0u);
}

TEST(EngineRecipes, freed_inputs_of_a_row_end_with_its_last_block) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  std::vector<void*> row{program.make(4 * MiB)};
  program.write(row[0], 1);
  for (int i = 0; i < 5; ++i) {
    row.push_back(program.make(4 * MiB));
    program.run(row.back(), {row[row.size() - 2]});
  }
  program.away(row.back());
  for (size_t i = 0; i + 1 < row.size(); ++i) program.free(row[i]);
  program.engine().check();
  EXPECT_EQ(program.engine().stats().recipes, 5u);
  program.free(row.back());
  (void)program.engine().pump();
  EXPECT_EQ(program.engine().stats().recipes, 0u);
  EXPECT_TRUE(program.made.empty());
  program.engine().trim();
  program.engine().check();
  EXPECT_EQ(sim.counts(0).frame_bytes, 0u);
}

TEST(EngineRecipes, a_kept_input_may_leave_and_come_back) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  void* in = program.make(6 * MiB);
  void* out = program.make(6 * MiB);
  program.write(in, 1);
  program.run(out, {in});
  program.away(out);
  program.read(in);  // it is on the device again, and is freed there
  program.free(in);
  const auto left = [&] {
    const EngineStats stats = program.engine().stats();
    return stats.spilled_bytes + stats.clean_dropped_bytes;
  };
  const uint64_t before = left();
  void* large = program.make(16 * MiB);
  program.write(large, 4);
  EXPECT_EQ(left(), before + 4 * MiB) << "the input, but what fits beside";
  EXPECT_EQ(program.state(out), "dropped");
  program.free(large);
  program.read(out);
  program.settle();
}

TEST(EngineRecipes, a_write_on_another_stream_waits_for_reads_that_it_does_not_know_of) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const CUstream one = sim.make_stream(0), other = sim.make_stream(0);
  const auto [in, out, recipe] = program.drop_one();
  ASSERT_EQ(sim.gpu().busy(one, 5'000'000), 0);
  program.read(out, one);       // reads `in` behind 5 ms of work
  program.write(in, 2, other);  // which the program has no reason to wait for
  program.read(out, one);
  program.settle();
}

TEST(EngineRecipes, freed_memory_is_not_reused_before_reads_that_the_program_does_not_know_of) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const CUstream one = sim.make_stream(0), home = sim.make_stream(0);
  void* in = program.make(4 * MiB, home);
  void* out = program.make(4 * MiB);
  program.write(in, 1, home);
  sim.synchronize();
  program.run(out, {in});
  program.away(out);
  ASSERT_EQ(sim.gpu().busy(one, 5'000'000), 0);
  program.read(out, one);
  program.free(in);
  void* again = program.make(4 * MiB, home);
  program.write(again, 7, home);
  program.read(out, one);
  program.settle();
}

TEST(EngineRecipes, freed_while_away_or_while_it_is_made_again) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  void* in = program.make(4 * MiB);
  program.write(in, 1);
  void* out = program.make(4 * MiB);
  program.run(out, {in});
  program.away(out);
  program.free(out);
  program.settle();
  EXPECT_TRUE(program.made.empty());
  for (const unsigned fails : {0u, 1u}) {
    out = program.make(4 * MiB);
    program.run(out, {in});
    program.away(out);
    program.failures = fails;
    program.during = [&](uint64_t) { ASSERT_TRUE(program.engine().free(out)); };
    (void)program.engine().touch(out, nullptr, Access::read);
    program.during = nullptr;
    EXPECT_EQ(program.state(out), "gone");
    program.settle();
  }
  program.free(in);
  program.engine().trim();
  program.engine().check();
  EXPECT_EQ(sim.counts(0).frame_bytes, 0u);
}

TEST(EngineRecipes, small_inputs_count_by_themselves) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  void* scale = program.make(64 << 10);
  void* beside = program.make(64 << 10);
  void* out = program.make(4 * MiB);
  program.write(scale, 1);
  program.write(beside, 2);
  const uint64_t id = program.run(out, {scale});
  ASSERT_NE(id, 0u) << describe(program.refused.error());
  program.write(beside, 3);
  EXPECT_EQ(program.engine().stats().recipes, 1u) << "another block of the segment was written";
  program.away(out);
  program.write(beside, 4);
  EXPECT_TRUE(program.made.empty());
  program.read(out);
  program.away(out);
  program.read(beside);
  const uint64_t stalls = program.engine().stats().stalls;
  program.write(scale, 5);
  EXPECT_EQ(program.engine().stats().stalls, stalls + 1);
  EXPECT_EQ(program.made, (std::vector{id, id}));
  EXPECT_EQ(program.engine().stats().recipes, 0u);
  const uint64_t more = program.run(out, {scale});
  program.away(out);
  program.free(scale);
  void* fresh = program.make(64 << 10);
  EXPECT_NE(fresh, scale);
  program.write(fresh, 9);
  program.read(out);
  EXPECT_EQ(program.made.back(), more);
  program.free(beside), program.free(fresh), program.free(out);
  program.settle();
  program.engine().trim();
  program.engine().check();
  EXPECT_EQ(sim.counts(0).frame_bytes, 0u);
}

TEST(EngineRecipes, a_kept_small_input_leaves_with_its_segment_and_ends_once_it_was_read) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  void* scale = program.make(64 << 10);
  void* beside = program.make(64 << 10);
  void* out = program.make(4 * MiB);
  program.write(scale, 1), program.write(beside, 2);
  program.run(out, {scale});
  program.away(out);
  program.read(beside);
  program.free(scale);
  program.away(beside, "hosted");
  program.read(out);
  (void)program.engine().pump();
  EXPECT_EQ(program.engine().stats().recipes, 0u) << "the input is gone";
  EXPECT_EQ(program.make(64 << 10), scale);
  program.read(beside);
  program.settle();
}

TEST(EngineRecipes, who_may_write_on_any_stream_waits_for_reads_that_it_does_not_know_of) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const CUstream one = sim.make_stream(0), other = sim.make_stream(0);
  const auto [in, out, recipe] = program.drop_one();
  ASSERT_EQ(sim.gpu().busy(one, 5'000'000), 0);
  program.read(out, one);
  const uint64_t begin = sim.clock().now_ns();
  ASSERT_TRUE(program.engine().pin(in, "in the test"));
  EXPECT_GE(sim.clock().now_ns() - begin, 4'000'000u);
  ASSERT_TRUE(sim.fill(0, in, 4 * MiB, 99, other));
  program.settle();
}
