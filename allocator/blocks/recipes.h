// Recipes: which block can be made again, and from which others (its inputs). A recipe stands until
// its block or an input is written, or ends. While a block is away with its recipe as the only way
// back, its inputs stay as they were: who writes one makes the block again first, and one that the
// program frees is kept.
//
// No recipe leads back to its own block: a block that others are made from is given none, so that
// the recipes on any way are one older than the other.
//
// Owns: the recipes, and the way from an input to the blocks that are made from it (its readers).
// Sets word::recipes on both ends, and never clears it: a use that writes, and the block's end,
// look here and clear it. Nothing here moves a block or calls the driver.
// Lock: the engine's, around every call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "allocator/blocks/block.h"
#include "firn/thread_safety.h"

namespace firn {

struct Recipe {
  uint64_t id = 0;                // the front end's name for it
  uint64_t device_ns = 0;         // how long the device takes
  std::vector<Block*> inputs;     // each once, and not the block itself
  // Inputs that are freed are kept, although the block is not away: until it was made again.
  bool keeps_inputs = false;
  std::thread::id maker{};        // who is making the block again; default: nobody
  unsigned depth = 0;             // recipes in a row up to this one, at most; add() counts
};

class Recipes {
 public:
  /// Of a block without a recipe that nothing is made from.
  void add(Block& block, Recipe recipe) FIRN_HELD;
  /// Ends the block's recipe, and returns its inputs. None: there is no recipe.
  std::vector<Block*> remove(Block& block) FIRN_HELD;
  /// The depth of a recipe that reads these: 1 more than the deepest of theirs. (It only falls:
  /// their recipes may end, and their blocks are given none while they are read.)
  unsigned depth_over(std::span<Block* const> inputs) const FIRN_HELD;
  /// How many recipes in a row have to be run again for the block; 0: it is not away.
  unsigned depth_to(const Block& block) const FIRN_HELD {
    return away(block) ? of(block)->depth : 0;
  }
  /// Null: it has none.
  Recipe* of(const Block& block) FIRN_HELD;
  const Recipe* of(const Block& block) const FIRN_HELD;
  /// The blocks that are made from this one, until add() or remove().
  std::span<Block* const> readers(const Block& input) const FIRN_HELD;
  /// The first of them that is away and has no other way back; null: none is.
  Block* reader_away(const Block& input) const FIRN_HELD;
  /// Is its recipe the only way back of its bytes at this moment?
  static bool away(const Block& block) {
    const State state = block.state();
    return state == State::dropped || state == State::remaking;
  }
  /// The ids of recipes that ended since the last call.
  std::vector<uint64_t> take_ended() FIRN_HELD { return std::exchange(ended_, {}); }
  size_t size() const FIRN_HELD { return recipes_.size(); }
  /// Calls visit(block, recipe) for each.
  template <class Visit>
  void each(Visit&& visit) const FIRN_HELD {
    for (const auto& [block, recipe] : recipes_) visit(*block, recipe);
  }
  /// Aborts on a broken invariant.
  void check() const FIRN_HELD;

 private:
  std::unordered_map<const Block*, Recipe> recipes_ FIRN_GUARDED;              // by block
  std::unordered_map<const Block*, std::vector<Block*>> readers_ FIRN_GUARDED;  // by input
  std::vector<uint64_t> ended_ FIRN_GUARDED;
};

}  // namespace firn
