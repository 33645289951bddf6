// Recipes as the front end gives and chooses them. (What they lead to: fault.cpp, which makes
// blocks again; touch.cpp and free.cpp, where they end; blocks/recipes.h, which has them.)
#include <algorithm>

#include <fmt/format.h>

#include "allocator/engine/hot.h"

namespace firn {

void EngineImpl::remake_with(Remaker* remaker) {
  remaker_.store(remaker, std::memory_order_release);
}

Result<void> EngineImpl::give_recipe(const void* pointer, const RecipeOf& recipe) {
  const auto refuse = [&](const char* why, const void* input = nullptr) {
    return make_error(Code::invalid_argument, 0,
                      fmt::format("no recipe {} for {}: {}{}", recipe.id, pointer, why,
                                  input ? fmt::format(" ({})", input) : std::string()));
  };
  if (!remaker_.load(std::memory_order_acquire)) return refuse("nobody makes blocks again");
  Lock lock(mutex_);
  Block* block = live_at(pointer, false);
  if (!block || block->pages == 0 || block->place_bytes != 0)
    return refuse("it is no block that leaves the device by itself");
  const uint64_t w = block->word.load();
  if (word::state(w) != State::resident && word::state(w) != State::spilling)
    return refuse("its bytes are not on the device");
  if (!(w & word::proven) || (w & word::pinned))
    return refuse("its uses are not all seen");
  if (!recipes_.readers(*block).empty()) return refuse("others are made from it already");
  std::vector<Block*> inputs;
  for (const void* address : recipe.inputs) {
    Block* input = live_at(address, false);
    if (!input) return refuse("an input is not a block of this engine", address);
    const uint64_t of = input->word.load();
    const Block* moved = moved_with(input);
    if (!(of & word::proven) || (of & word::pinned) || moved->pages == 0)
      return refuse("an input's uses are not all seen", address);
    if (input == block) return refuse("it reads what it writes");
    if (std::find(inputs.begin(), inputs.end(), input) == inputs.end()) inputs.push_back(input);
  }
  if (recipes_.depth_over(inputs) > recipe_depth_most)
    return refuse("there would be too many recipes in a row");
  end_recipe(*block);
  for (Block* input : inputs) moved_with(input)->word.set(word::recipes);
  const bool keeps_inputs = recipe.keep_inputs || options_.adversarial;
  recipes_.add(*block, {recipe.id, recipe.device_ns, std::move(inputs), keeps_inputs});
  block->by_recipe = recipe.chosen || options_.adversarial;
  return {};
}

bool EngineImpl::choose_remake(const void* pointer, bool chosen) {
  Lock lock(mutex_);
  Block* block = live_at(pointer, false);
  Recipe* recipe = block ? recipes_.of(*block) : nullptr;
  if (!recipe) return false;
  block->by_recipe = chosen || options_.adversarial;
  if (!block->by_recipe) lets_inputs_go(*recipe);
  return true;
}

void EngineImpl::note_remake(const RemakeInUse& in_use) {
  Lock lock(mutex_);
  counted_.remake = in_use;
}

std::vector<uint64_t> EngineImpl::take_ended_recipes() {
  Lock lock(mutex_);
  return recipes_.take_ended();
}

Iteration EngineImpl::iteration() const {
  return {short_period_.load(std::memory_order_relaxed), ring_ ? ring_->pushed() : 0};
}

}  // namespace firn
