// Blocks that are made again: each rule by itself. (All together, at random: tests/simulation.)
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/allocator/engine/remaking_program.h"

using namespace firn;
using namespace firn::test;

TEST(EngineRemake, a_block_is_dropped_without_a_copy_and_made_again_at_its_use) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  void* in = program.make(6 * MiB);
  void* out = program.make(6 * MiB);
  program.write(in, 1);
  const uint64_t id = program.run(out, {in});
  ASSERT_NE(id, 0u) << describe(program.refused.error());
  const uint64_t spilled = program.engine().stats().spilled_bytes;
  program.away(out);
  EXPECT_EQ(program.state(in), "hosted");
  EXPECT_EQ(program.engine().stats().spilled_bytes, spilled + 6 * MiB) << "of the input alone";
  program.read(out);
  EXPECT_EQ(program.state(out), "resident");
  EXPECT_EQ(program.made, std::vector{id});
  const EngineStats stats = program.engine().stats();
  EXPECT_EQ(stats.recipes, 1u);
  EXPECT_EQ(stats.dropped_bytes, 6 * MiB);
  EXPECT_EQ(stats.remakes, 1u);
  EXPECT_EQ(stats.remade_bytes, 6 * MiB);
  EXPECT_EQ(stats.remade_ns, 1000u);
  program.settle();
}

TEST(EngineRemake, what_is_not_chosen_moves) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  void* in = program.make(6 * MiB);
  void* out = program.make(6 * MiB);
  program.write(in, 1);
  ASSERT_NE(program.run(out, {in}, nullptr, false), 0u);
  program.away(out, "hosted");
  program.read(out);
  EXPECT_TRUE(program.made.empty());
  // Chosen now, it still has a copy of all of it, and that is the better way back.
  ASSERT_TRUE(program.engine().choose_remake(out, true));
  program.away(out, "hosted");
  program.read(out);
  EXPECT_TRUE(program.made.empty());
  program.settle();
}

TEST(EngineRemake, a_recipe_is_refused_where_it_could_not_be_kept) {
  Simulation sim(budget_18mib());
  Engine& engine = sim.engine(0);
  void* alone = *engine.allocate(2 * MiB, nullptr);
  EXPECT_FALSE(engine.give_recipe(alone, {1, {}, 0, true})) << "nobody makes blocks again";
  RemakingProgram program(sim);
  EXPECT_FALSE(engine.give_recipe(alone, {1, {}, 0, true})) << "no use of it was seen";
  void* in = program.make(2 * MiB);
  void* out = program.make(2 * MiB);
  program.write(in, 1);
  ASSERT_NE(program.run(out, {in}), 0u);
  const auto refused = [&](void* block, const void* input) {
    const void* const inputs[] = {input};
    Result<void> given = engine.give_recipe(block, {9, inputs, 0, true});
    EXPECT_FALSE(given);
    if (given) return std::string();
    EXPECT_EQ(given.error().code, Code::invalid_argument);
    return given.error().text;
  };
  int foreign = 0;
  EXPECT_NE(refused(out, &foreign).find("not a block of this engine"), std::string::npos);
  EXPECT_NE(refused(out, alone).find("not all seen"), std::string::npos);
  EXPECT_NE(refused(out, static_cast<char*>(out) + 1).find("what it writes"), std::string::npos);
  EXPECT_NE(refused(in, out).find("made from it"), std::string::npos) << "a circle";
  ASSERT_TRUE(engine.pin(alone, "in the test"));
  EXPECT_NE(refused(out, alone).find("not all seen"), std::string::npos);
  EXPECT_NE(refused(alone, in).find("not all seen"), std::string::npos);
  EXPECT_FALSE(engine.choose_remake(in, true)) << "it has no recipe";
  EXPECT_TRUE(engine.take_ended_recipes().empty());
  program.away(out);
  EXPECT_NE(refused(out, in).find("not on the device"), std::string::npos);
  program.read(out);
  program.settle();
}

TEST(EngineRemake, a_long_row_needs_room_for_two_at_a_time) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  std::vector<void*> row{program.make(6 * MiB)};
  program.write(row[0], 1);
  for (int i = 0; i < 12; ++i) {
    row.push_back(program.make(6 * MiB));
    ASSERT_NE(program.run(row.back(), {row[row.size() - 2]}), 0u);
  }
  program.away(row.back());
  EXPECT_LE(program.engine().stats().spilled_bytes, 6 * MiB) << "the first alone has a copy";
  const uint64_t stalls = program.engine().stats().stalls;
  program.read(row.back());
  // From the first that is gone to the last, each once.
  for (size_t i = 1; i < program.made.size(); ++i)
    EXPECT_EQ(program.made[i], program.made[i - 1] + 1);
  EXPECT_EQ(program.made.size(), 12u);
  EXPECT_EQ(program.engine().stats().stalls, stalls + 1) << "the inputs' are a part of it";
  program.settle();
}

TEST(EngineRemake, inputs_that_need_most_come_first_so_that_a_chain_needs_room_for_one_link) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  void* base = program.make(2 * MiB);
  void* last = program.make(4 * MiB);
  program.write(base, 1), program.write(last, 2);
  for (int i = 0; i < 8; ++i) {
    void* beside = program.make(4 * MiB);
    ASSERT_NE(program.run(beside, {base}), 0u);
    void* next = program.make(4 * MiB);
    ASSERT_NE(program.run(next, {beside, last}), 0u);
    last = next;
  }
  program.away(last);
  program.read(last);
  program.settle();
}

TEST(EngineRemake, a_recipe_on_top_of_too_many_is_refused) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  void* last = program.make(2 * MiB);
  program.write(last, 1);
  for (unsigned i = 0; i < recipe_depth_most; ++i) {
    void* next = program.make(2 * MiB);
    ASSERT_NE(program.run(next, {last}), 0u) << i;
    last = next;
  }
  void* next = program.make(2 * MiB);
  EXPECT_EQ(program.run(next, {last}), 0u);
  EXPECT_EQ(program.refused.error().code, Code::invalid_argument);
  EXPECT_NE(program.refused.error().text.find("in a row"), std::string::npos);
  program.away(last);
  EXPECT_EQ(program.state(next), "hosted");
  program.read(last);
  EXPECT_EQ(program.made.size(), recipe_depth_most);
  program.settle();
}

TEST(EngineRemake, other_streams_wait_for_it) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const CUstream one = sim.make_stream(0), other = sim.make_stream(0);
  const auto [in, out, recipe] = program.drop_one();
  ASSERT_EQ(sim.gpu().busy(one, 5'000'000), 0);
  program.read(out, one);
  program.read(out, other);
  program.settle();
}

TEST(EngineRemake, a_failure_is_said_and_the_next_use_tries_again) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const auto [in, out, id] = program.drop_one();
  const CUstream stream = sim.make_stream(0);
  for (const bool enqueues : {false, true}) {
    program.failures = 1;
    program.enqueues_and_fails = enqueues;
    ASSERT_EQ(sim.gpu().busy(stream, 2'000'000), 0);
    Result<void> read = program.try_read(out, stream);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code, Code::driver);
    for (const char* words : {"could not be made again", "recipe 1", "the test says no"})
      EXPECT_NE(read.error().text.find(words), std::string::npos) << read.error().text;
    EXPECT_EQ(program.state(out), "dropped");
    program.engine().check();
  }
  // Nor does a write of the input go on without it.
  program.failures = 1;
  EXPECT_FALSE(program.engine().touch(in, nullptr, Access::write));
  EXPECT_EQ(program.state(out), "dropped");
  program.read(out);
  EXPECT_EQ(program.made, (std::vector{id, id, id, id}));
  program.settle();
}

TEST(EngineRemake, without_room_the_block_stays_where_it_is) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  void* in = program.make(6 * MiB);
  void* out = program.make(6 * MiB);
  program.write(in, 1);
  program.run(out, {in});
  program.away(out);
  void* held = program.make(12 * MiB);
  program.write(held, 3);
  Result<Hold> hold = program.engine().touch(held, nullptr, Access::read);
  ASSERT_TRUE(hold);
  Result<void> read = program.try_read(out);  // the input comes, and then there is no room
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::out_of_memory);
  EXPECT_EQ(program.state(out), "dropped");
  program.engine().check();
  program.engine().release(*hold, nullptr);
  program.read(out);
  EXPECT_EQ(program.made.size(), 1u);
  program.settle();
}

TEST(EngineRemake, the_remaker_may_use_the_engine) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const auto [in, out, recipe] = program.drop_one();
  program.during = [&](uint64_t) {
    Engine& engine = program.engine();
    EXPECT_EQ(program.state(out), "remaking");
    Result<Hold> of_out = engine.touch(out, nullptr, Access::write);
    EXPECT_TRUE(of_out && !of_out->block);
    Result<Hold> of_in = engine.touch(in, nullptr, Access::read);
    ASSERT_TRUE(of_in);
    Result<void*> more = engine.allocate(8 * MiB, nullptr);
    ASSERT_TRUE(more);
    EXPECT_TRUE(engine.free(*more));
    engine.spill_all();
    EXPECT_EQ(program.state(in), "resident");
    engine.release(*of_in, nullptr);
    Result<Hold> write = engine.touch(in, nullptr, Access::write);
    EXPECT_FALSE(write) << "it may not write what it reads";
    engine.check();
  };
  program.read(out);
  program.during = nullptr;
  EXPECT_EQ(program.made.size(), 1u);
  program.settle();
}

TEST(EngineRemake, holds_pins_and_copies_ahead) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  Engine& engine = program.engine();
  void* in = program.make(4 * MiB);
  void* out = program.make(4 * MiB);
  program.write(in, 1);
  program.run(out, {in});
  Result<Hold> hold = engine.touch(out, nullptr, Access::read);
  engine.spill_all();
  EXPECT_EQ(program.state(out), "resident") << "it is held";
  engine.release(*hold, nullptr);
  program.away(out);
  ASSERT_TRUE(engine.prefetch(out, 4 * MiB, nullptr));
  for (int i = 0; i < 100; ++i) (void)engine.pump();
  EXPECT_EQ(program.state(out), "dropped") << "nothing is made again ahead of its use";
  ASSERT_TRUE(engine.give_address(out, "in the test"));
  EXPECT_EQ(program.state(out), "resident");
  EXPECT_EQ(engine.stats().recipes, 0u) << "its uses are not all seen any more";
  program.read(out);
  program.settle();
}

TEST(EngineRemake, in_adversarial_mode_every_recipe_counts_as_chosen) {
  SimulationOptions options = budget_18mib();
  options.adversarial = options.poison = true;
  Simulation sim(options);
  RemakingProgram program(sim);
  void* in = program.make(4 * MiB);
  void* out = program.make(4 * MiB);
  program.write(in, 1);
  program.run(out, {in}, nullptr, false);
  for (int i = 0; i < 3; ++i) {
    program.away(out);
    program.read(out);
  }
  EXPECT_EQ(program.made.size(), 3u);
  program.settle();
}

TEST(EngineRemake, one_thread_makes_it_and_the_others_wait_without_the_lock) {
  SimulationOptions options = budget_18mib();
  std::atomic<bool> waits{false};
  const std::thread::id first = std::this_thread::get_id();
  options.on_wait = [&] {
    if (std::this_thread::get_id() != first) waits = true;
  };
  Simulation sim(options);
  RemakingProgram program(sim);
  const auto [in, out, recipe] = program.drop_one();
  for (const bool writes_input : {false, true}) {
    waits = false;
    std::thread other;
    Result<Hold> hold = Hold{};
    program.during = [&](uint64_t) {
      other = std::thread([&] {
        hold = writes_input ? program.engine().touch(in, nullptr, Access::write)
                            : program.engine().touch(out, nullptr, Access::read);
      });
      while (!waits) std::this_thread::yield();
      EXPECT_EQ(program.engine().stats().remakes, writes_input ? 1u : 0u) << "the lock is free";
    };
    program.read(out);
    program.during = nullptr;
    other.join();
    ASSERT_TRUE(hold && hold->block);
    std::thread([&] { program.engine().release(*hold, nullptr); }).join();
    if (!writes_input) program.away(out);
  }
  EXPECT_EQ(program.made.size(), 2u);
  EXPECT_EQ(program.engine().stats().recipes, 0u);
  program.settle();
}
