// Recipes that keep inputs which the program frees before the block has left.
#include <gtest/gtest.h>

#include <vector>

#include "tests/allocator/engine/remaking_program.h"

using namespace firn;
using namespace firn::test;

namespace {

struct Made {
  void* in;
  void* out;
};

/// Made from an input that the program frees at once.
Made freed_input(RemakingProgram& program, bool keep_inputs) {
  const Made made{program.make(4 * MiB), program.make(4 * MiB)};
  program.write(made.in, 1);
  program.run(made.out, {made.in}, nullptr, true, keep_inputs);
  program.free(made.in);
  program.settle();
  return made;
}

}  // namespace

TEST(EngineRecipesKeep, an_input_freed_before_the_block_leaves_ends_other_recipes) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const Made made = freed_input(program, false);
  program.expect_moves(made.out);
}

TEST(EngineRecipesKeep, it_is_kept_until_the_block_was_made_again) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const Made made = freed_input(program, true);
  EXPECT_EQ(program.engine().stats().recipes, 1u);
  program.away(made.out);
  program.read(made.out);
  program.settle();
  EXPECT_EQ(program.made.size(), 1u);
  EXPECT_EQ(program.engine().stats().recipes, 0u) << "its input has ended";
  program.away(made.out, "hosted");
  program.read(made.out);
  EXPECT_EQ(program.engine().stats().faulted_bytes, 8u * MiB) << "the kept input, and now the block";
  program.settle();
}

TEST(EngineRecipesKeep, it_ends_where_the_block_is_no_longer_chosen) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const Made made = freed_input(program, true);
  EXPECT_TRUE(program.engine().choose_remake(made.out, false));
  program.settle();
  program.expect_moves(made.out);
}

TEST(EngineRecipesKeep, it_ends_with_the_block_and_with_a_write_of_it) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  program.free(freed_input(program, true).out);
  program.settle();
  EXPECT_EQ(program.engine().stats().recipes, 0u);
  program.write(freed_input(program, true).out, 7);
  program.settle();
  EXPECT_EQ(program.engine().stats().recipes, 0u);
  EXPECT_EQ(program.made.size(), 0u);
}

TEST(EngineRecipesKeep, a_row_of_freed_inputs_is_made_from_what_is_left) {
  Simulation sim(budget_18mib());
  RemakingProgram program(sim);
  const auto [first, middle, last] = program.make_row();
  const uint64_t one = program.run(middle, {first}, nullptr, true, true);
  const uint64_t two = program.run(last, {middle}, nullptr, true, true);
  program.free(middle);
  program.settle();
  program.away(last);
  EXPECT_EQ(program.engine().stats().spilled_bytes, 4u * MiB) << "the first alone was copied";
  program.read(last);
  EXPECT_EQ(program.made, (std::vector{one, two}));
  program.settle();
  program.read(first);
  program.settle();
}
