// The recipes that are kept, by the address of the storage that each can make again.
//
// Costs, while recipes are kept: of an operator on the list that makes a storage of `least_bytes`,
// naming its tensors and exchanging the recipe for the one in a slot; of any operator, a count for
// each tensor that it writes. Nothing is allocated but a recipe for each slot that is used for the
// first time; the same address has the same slot in the next iteration. Nobody waits: a slot that
// another thread is using is passed over.
//
// Owns: the slots, for the process's life. Locks: a flag for each slot, tried and never waited for
// while operators run; a reader of a recipe waits for its writer, who only copies.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "pytorch_plugin/recipes/recipe.h"

namespace firn::pytorch {

namespace recipes {
inline std::atomic<uint64_t> least_bytes{0};  // of storages whose recipes are kept; 0: none are
inline std::atomic<bool> of_products{false};
}  // namespace recipes

inline bool keeping_recipes() { return recipes::least_bytes.load(std::memory_order_relaxed) != 0; }
inline bool keeps_recipes_of(const RemadeOperator& made_by) {
  return !made_by.product || recipes::of_products.load(std::memory_order_relaxed);
}

/// From now on recipes are kept of storages of so many bytes and more; 0: of none, and those that
/// were kept no longer stand. `products`: of matrix products and convolutions, too. Nothing is kept
/// where launches go unseen (Firn is not in front of the driver). False: then.
bool keep_recipes(uint64_t least_bytes, bool products);

/// Keeps the recipe for each of its results that is large enough, in place of what was kept for
/// that address. Gives another for it, whose contents do not matter.
void keep_recipe(std::unique_ptr<Recipe>& recipe);

/// Copies the recipe of the storage that begins at `base`, with the number of the result that is
/// there. False: none is kept.
bool find_recipe(const void* base, Recipe& recipe, size_t& result_at);

/// {"no_slot": how often a recipe was not kept because none was free}.
std::string kept_text();

}  // namespace firn::pytorch
