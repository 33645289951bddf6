// Who is made from whom: against a model that keeps nothing but a list.
#include "allocator/blocks/recipes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "tests/allocator/blocks/block_word_inspector.h"

using namespace firn;

namespace {

void be(Block& block, State state) {
  BlockWordInspector::put(block.word, static_cast<uint64_t>(state) |
                                          (block.word.load() & ~word::state_mask));
}

TEST(Recipes, both_ends_are_marked_and_found) {
  Recipes recipes;
  Block in, out, other;
  for (Block* block : {&in, &out, &other}) be(*block, State::resident);
  EXPECT_FALSE(recipes.of(out));
  recipes.add(out, {7, 100, {&in}});
  EXPECT_EQ(recipes.of(out)->id, 7u);
  EXPECT_FALSE(recipes.of(in));
  EXPECT_TRUE(in.word.load() & out.word.load() & word::recipes);
  EXPECT_FALSE(other.word.load() & word::recipes);
  ASSERT_EQ(recipes.readers(in).size(), 1u);
  EXPECT_EQ(recipes.readers(in)[0], &out);
  EXPECT_EQ(recipes.reader_away(in), nullptr);
  for (const State away : {State::dropped, State::remaking}) {
    be(out, away);
    EXPECT_EQ(recipes.reader_away(in), &out);
  }
  recipes.check();
  EXPECT_EQ(recipes.remove(out), std::vector{&in});
  EXPECT_TRUE(recipes.readers(in).empty());
  EXPECT_EQ(recipes.take_ended(), std::vector<uint64_t>{7});
  EXPECT_TRUE(recipes.take_ended().empty());
  EXPECT_TRUE(recipes.remove(out).empty());
  EXPECT_TRUE(recipes.take_ended().empty());
  EXPECT_EQ(recipes.size(), 0u);
}

TEST(Recipes, depth_counts_recipes_in_a_row_and_what_is_on_the_device_needs_none) {
  Recipes recipes;
  std::array<Block, 4> row;
  for (Block& block : row) be(block, State::resident);
  recipes.add(row[1], {1, 0, {&row[0]}});
  recipes.add(row[2], {2, 0, {&row[0], &row[1]}});
  const std::array<Block*, 2> inputs{&row[2], &row[0]};
  EXPECT_EQ(recipes.depth_over(inputs), 3u);
  EXPECT_EQ(recipes.depth_over({}), 1u);
  EXPECT_EQ(recipes.depth_to(row[2]), 0u);
  be(row[2], State::dropped);
  EXPECT_EQ(recipes.depth_to(row[2]), 2u);
  EXPECT_EQ(recipes.depth_to(row[0]), 0u);
  recipes.check();
}

TEST(RecipesDeathTest, what_would_close_a_circle_or_end_under_way_aborts) {
  Recipes recipes;
  Block in, out;
  recipes.add(out, {1, 0, {&in}});
  EXPECT_DEATH(recipes.add(out, {2, 0, {}}), "has a recipe");
  EXPECT_DEATH(recipes.add(in, {2, 0, {&out}}), "1 readers");
  be(in, State::resident), be(out, State::resident);
  recipes.of(out)->maker = std::this_thread::get_id();
  EXPECT_DEATH(recipes.remove(out), "being made again");
  recipes.of(out)->maker = {};
  be(in, State::ready);
  EXPECT_DEATH(recipes.check(), "has ended");
}

/// FIRN_SEED=... replays one.
TEST(Recipes, any_order_of_adding_and_removing_is_as_the_model_has_it) {
  const char* only = std::getenv("FIRN_SEED");
  const unsigned first = only ? static_cast<unsigned>(std::atoi(only)) : 1;
  for (unsigned seed = first; seed < first + (only ? 1 : 50); ++seed) {
    std::mt19937 random(seed);
    std::array<Block, 12> blocks;
    for (Block& block : blocks) be(block, State::resident);
    std::map<Block*, std::set<Block*>> model;
    Recipes recipes;
    std::vector<uint64_t> ended;
    const auto any = [&]() -> Block& { return blocks[random() % blocks.size()]; };
    const auto readers_of = [&](Block& block) {
      std::set<Block*> readers;
      for (const auto& [reader, inputs] : model)
        if (inputs.contains(&block)) readers.insert(reader);
      return readers;
    };
    for (unsigned step = 0; step < 500; ++step) {
      Block& block = any();
      be(block, random() % 3 ? State::resident : State::dropped);
      if (random() % 2) {
        if (model.contains(&block) || !readers_of(block).empty()) continue;
        std::set<Block*> inputs;
        for (unsigned i = random() % 4; i > 0; --i)
          if (Block& input = any(); &input != &block) inputs.insert(&input);
        model[&block] = inputs;
        recipes.add(block, {step, 0, {inputs.begin(), inputs.end()}});
      } else if (const auto found = model.find(&block); found != model.end()) {
        const std::vector<Block*> inputs = recipes.remove(block);
        EXPECT_EQ(std::set<Block*>(inputs.begin(), inputs.end()), found->second);
        model.erase(found);
        ended.push_back(1);
      }
      ASSERT_EQ(recipes.size(), model.size()) << "replay: FIRN_SEED=" << seed << " recipes_test";
      for (Block& each : blocks) {
        const auto read = recipes.readers(each);
        const std::set<Block*> expected = readers_of(each);
        ASSERT_EQ(std::set<Block*>(read.begin(), read.end()), expected)
            << "replay: FIRN_SEED=" << seed << " recipes_test";
        const bool away = std::any_of(expected.begin(), expected.end(), [](const Block* reader) {
          return reader->state() == State::dropped;
        });
        ASSERT_EQ(recipes.reader_away(each) != nullptr, away)
            << "replay: FIRN_SEED=" << seed << " recipes_test";
      }
      recipes.check();
    }
    EXPECT_EQ(recipes.take_ended().size(), ended.size());
  }
}

}  // namespace
