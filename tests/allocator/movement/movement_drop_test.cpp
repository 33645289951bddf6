// A block's way out where its recipe stands: without a copy.
#include "tests/allocator/movement/movement_fixture.h"

using namespace firn;
using namespace firn::test;

namespace {

using Words = std::vector<std::string>;

TEST(MovementDrop, a_chosen_block_leaves_without_a_copy_once_its_uses_are_over) {
  OneMovement m;
  Block& block = m.block();
  m.use(block);
  block.by_recipe = true;
  EXPECT_TRUE(Movement::drops(block));
  EXPECT_FALSE(m.movement.start_spill(block, false)) << "nor is a copy made ahead";
  EXPECT_EQ(block.state(), State::resident);
  ASSERT_TRUE(m.movement.start_spill(block, true, 1)) << "all of it leaves";
  EXPECT_EQ(block.state(), State::spilling);
  EXPECT_EQ(Movement::leaving_pages(block), block.pages);
  m.rounds();
  EXPECT_EQ(block.state(), State::spilling) << "in use";
  EXPECT_EQ(block.mapped, block.pages);
  m.finish_program();
  (void)m.streams.poll();
  EXPECT_TRUE(m.movement.advance());
  EXPECT_EQ(block.state(), State::dropped);
  EXPECT_EQ(block.mapped, 0u);
  EXPECT_TRUE(m.copies().empty());
  EXPECT_FALSE(block.word.load() & word::copies);
  EXPECT_EQ(m.traced, (Words{"spill by recipe", "dropped"}));
  EXPECT_EQ(m.movement.moved().dropped_bytes, 2 * piece_bytes);
  EXPECT_EQ(m.movement.moved().spilled_bytes, 0u);
  EXPECT_EQ(m.left, std::vector{&block});
  EXPECT_EQ(m.without_copy, (std::vector<const Block*>{&block}));
}

TEST(MovementDrop, a_copy_of_all_of_it_is_the_better_way_and_one_of_a_part_is_given_up) {
  OneMovement m;
  Block& block = m.block();
  ASSERT_TRUE(m.movement.start_spill(block, false));
  m.finish_out();
  m.rounds();
  ASSERT_EQ(block.state(), State::resident);
  block.by_recipe = true;
  EXPECT_FALSE(Movement::drops(block));
  ASSERT_TRUE(m.movement.start_spill(block, true));
  m.rounds();
  EXPECT_EQ(block.state(), State::hosted);
  EXPECT_TRUE(m.without_copy.empty());

  Block& part = m.block();
  ASSERT_TRUE(m.movement.start_spill(part, false));
  part.by_recipe = true;
  ASSERT_TRUE(m.movement.start_spill(part, true));
  EXPECT_EQ(part.state(), State::spilling);
  m.finish_out();  // the copies that were under way then
  m.rounds();
  m.rounds();
  EXPECT_EQ(part.state(), State::dropped);
}

TEST(MovementDrop, a_block_that_is_touched_meanwhile_stays) {
  OneMovement m;
  Block& block = m.block();
  m.use(block);
  block.by_recipe = true;
  ASSERT_TRUE(m.movement.start_spill(block, true));
  m.movement.keep(block);
  EXPECT_EQ(block.state(), State::resident);
  EXPECT_FALSE(block.dropping);
  EXPECT_FALSE(block.word.load() & word::copies);
  EXPECT_EQ(m.movement.leaving_pages(), 0u);
  m.finish_program();
  m.rounds();
  EXPECT_EQ(block.state(), State::resident);
  EXPECT_EQ(m.movement.moved().dropped_bytes, 0u);
}

}  // namespace
