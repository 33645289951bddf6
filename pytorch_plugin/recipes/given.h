// The recipes that the engines have: from the number by which an engine knows one to the operator
// that is to run. While an engine has a recipe, its block may leave without a copy, and the engine
// sees to it that the inputs stay as they were (include/firn/remaker.h).
//
// An engine knows of every use of the memory that it moves: what is enqueued outside of PyTorch's
// operators has no address of such memory. So its word decides whether a recipe stands, and not
// Writes. Settings of torch's are as they were while an operator runs again (settings_then.h).
// Left out: products, whose bits depend on the library that runs them.
//
// Owns: those recipes, for the process's life. Lock: its own, for looking one up.
#pragma once

#include <atomic>
#include <cstdint>

#include "pytorch_plugin/recipes/recipe.h"

namespace firn::pytorch {

/// Results of fewer bytes share frames with others, and cannot leave by themselves.
inline constexpr uint64_t given_least_bytes = 1 << 20;

namespace recipes {
inline std::atomic<bool> given{false};
}  // namespace recipes

/// From now on give_recipe() is called. False: launches go unseen, and nothing is made again.
bool give_recipes();
inline bool giving_recipes() { return recipes::given.load(std::memory_order_relaxed); }

/// Gives the recipe to its engine for each large result. Called within the operator's scope, which
/// holds what it read and made; alone in this thread, as for begin_recipe().
void give_recipe(const Recipe& recipe);

}  // namespace firn::pytorch
