#include "allocator/blocks/recipes.h"

#include <algorithm>
#include <utility>

#include "firn/check.h"

namespace firn {

void Recipes::add(Block& block, Recipe recipe) {
  FIRN_CHECK(!of(block) && readers(block).empty(), "block %llx has a recipe, or %zu readers",
             (unsigned long long)block.address, readers(block).size());
  for (Block* input : recipe.inputs) {
    readers_[input].push_back(&block);
    input->word.set(word::recipes);
  }
  block.word.set(word::recipes);
  recipe.depth = depth_over(recipe.inputs);
  recipes_.emplace(&block, std::move(recipe));
}

unsigned Recipes::depth_over(std::span<Block* const> inputs) const {
  unsigned most = 0;
  for (const Block* input : inputs)
    if (const Recipe* recipe = of(*input)) most = std::max(most, recipe->depth);
  return most + 1;
}

std::vector<Block*> Recipes::remove(Block& block) {
  const auto found = recipes_.find(&block);
  if (found == recipes_.end()) return {};
  FIRN_CHECK(found->second.maker == std::thread::id(), "block %llx is being made again",
             (unsigned long long)block.address);
  ended_.push_back(found->second.id);
  std::vector<Block*> inputs = std::move(found->second.inputs);
  recipes_.erase(found);
  for (Block* input : inputs) {
    const auto readers = readers_.find(input);
    std::erase(readers->second, &block);
    if (readers->second.empty()) readers_.erase(readers);
  }
  return inputs;
}

Recipe* Recipes::of(const Block& block) {
  const auto found = recipes_.find(&block);
  return found == recipes_.end() ? nullptr : &found->second;
}

const Recipe* Recipes::of(const Block& block) const {
  const auto found = recipes_.find(&block);
  return found == recipes_.end() ? nullptr : &found->second;
}

std::span<Block* const> Recipes::readers(const Block& input) const {
  const auto found = readers_.find(&input);
  if (found == readers_.end()) return {};
  return found->second;
}

Block* Recipes::reader_away(const Block& input) const {
  for (Block* reader : readers(input))
    if (away(*reader)) return reader;
  return nullptr;
}

void Recipes::check() const {
  for (const auto& [block, recipe] : recipes_) {
    const auto address = (unsigned long long)block->address;
    FIRN_CHECK(block->word.load() & word::recipes, "block %llx: a recipe without the flag",
               address);
    for (const Block* input : recipe.inputs) {
      FIRN_CHECK(input != block, "block %llx is made from itself", address);
      const Recipe* before = of(*input);
      FIRN_CHECK(!before || before->depth < recipe.depth, "block %llx: depth %u over one of %u",
                 address, recipe.depth, before->depth);
      const State state = input->state();
      FIRN_CHECK(state != State::free && state != State::ready && state != State::draining,
                 "block %llx is made from %llx, which has ended (%s)", address,
                 (unsigned long long)input->address, state_names[static_cast<int>(state)]);
      FIRN_CHECK(input->word.load() & word::recipes, "block %llx: read without the flag",
                 (unsigned long long)input->address);
      const auto read = readers(*input);
      FIRN_CHECK(std::count(read.begin(), read.end(), block) == 1, "block %llx is read by %zu",
                 (unsigned long long)input->address, read.size());
    }
  }
  for (const auto& [input, readers] : readers_)
    for (const Block* reader : readers)
      FIRN_CHECK(of(*reader), "block %llx is read by one without a recipe",
                 (unsigned long long)input->address);
}

}  // namespace firn
