// The recipes that the engines have: from the number by which an engine knows one to the operator
// that is to run. While an engine has a recipe, its block may leave without a copy, and the engine
// sees to it that the inputs stay as they were (include/firn/remaker.h).
//
// An engine knows of every use of the memory that it moves: what is enqueued outside of PyTorch's
// operators has no address of such memory. So its word decides whether a recipe stands, and not
// Writes. Settings of torch's are as they were while an operator runs again (settings.h).
// Whether an operator makes the same bytes again is proved by the caller, on the device (proof.h).
// With firn_verify:all every block that is made again is compared.
//
// Owns: those recipes, for the process's life. Lock: its own, for looking one up.
#pragma once

#include <atomic>
#include <cstdint>

#include "allocator/engine/engine.h"
#include "pytorch_plugin/recipes/recipe.h"

namespace firn::pytorch {

/// Results of fewer bytes share frames with others, and cannot leave by themselves.
inline constexpr uint64_t given_least_bytes = 1 << 20;

/// Which recipes: those that were chosen (remaking.h), or in adversarial mode all.
enum class Giving : uint8_t { none, chosen, all };
namespace recipes {
inline std::atomic<Giving> giving{Giving::none};
}  // namespace recipes

/// From now on recipes are given. False: launches go unseen, and nothing is made again.
bool give_recipes(Giving which);
inline bool giving_recipes() {
  return recipes::giving.load(std::memory_order_relaxed) != Giving::none;
}
inline bool giving_all() { return recipes::giving.load(std::memory_order_relaxed) == Giving::all; }

/// Is it one that may be given at all?
bool can_be_given(const Recipe& recipe, size_t result_at);
/// Gives the recipe of that result to its engine, to be made again once; inputs that are freed
/// before that are kept. Called within the operator's scope, which holds what it read and made;
/// alone in this thread, as for begin_recipe(). `device_ns`: how long it takes. False: the engine
/// takes none for that block, the result is too small, or the operator is known to make other bytes
/// when it runs again.
bool give_recipe(const Recipe& recipe, size_t result_at, uint64_t device_ns);
/// The block of a recipe that was given moves from now on, and its inputs are not kept for it: it is
/// made again first where it is away. Called outside of operators.
void give_up_recipe(Engine& engine, const void* base, int device);
/// Those of all its results.
void give_all(const Recipe& recipe);

}  // namespace firn::pytorch
