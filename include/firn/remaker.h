// The seam to who can make a block's bytes again: the front end, which knows the operator that
// wrote them. Of a recipe the engine keeps its number, the blocks that it reads (its inputs) and how
// long it takes (Engine::give_recipe()). The front end alone knows what the number means.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "firn/cuda_abi.h"
#include "firn/result.h"

namespace firn {

/// Recipes in a row: each reads what the one before it makes. One thread runs a whole row again, and
/// its stack holds a call for each.
inline constexpr unsigned recipe_depth_most = 64;

/// How a block's bytes can be made again.
struct RecipeOf {
  uint64_t id = 0;                          // the front end's name for it (Remaker::remake())
  std::span<const void* const> inputs;      // in the blocks that it reads
  uint64_t device_ns = 0;                   // how long the device takes
  bool chosen = false;                      // choose_remake()
  // An input that is freed is kept from now on, not only while the block is away: until the block
  // was made again once, or is no longer chosen. Without it the recipe would end there.
  bool keep_inputs = false;
};

/// Results of a program's iterations that are made again (for statistics).
struct RemakeInUse {
  uint64_t results = 0, bytes = 0;      // of an iteration; 0: nothing is made again
  uint64_t before_ns = 0, after_ns = 0;  // an iteration without and with it; 0: not measured
};

class Remaker {
 public:
  virtual ~Remaker() = default;
  /// Enqueues the recipe's work on `stream`: behind it [address, address + bytes) has the bytes
  /// that it had when the recipe was given. Called without the engine's lock, by a thread whose
  /// call of the engine's needs the block, with the device's context current. One recipe is never
  /// made twice at once; several threads may make different ones.
  ///
  /// `address`: of the block, which is mapped, with any contents. `bytes`: as they were asked for.
  /// `stream`: of this device, not under capture, and not always the one of the first run. All work
  /// of the recipe has to be in its order: it is the only stream that the engine knows of.
  ///
  /// The inputs are on the device, as they were, until this returns, those too that the program has
  /// freed meanwhile; the work may only read them. This may allocate and free, and touch blocks of
  /// the same engine. Touching its inputs is not needed; touching its own block is an empty hold.
  ///
  /// An error fails the use that needs the block, whose message has this error's text. The block is
  /// where it was, and its next use calls this again. Work that was enqueued before the error may
  /// write to the block: it is waited for.
  virtual Result<void> remake(uint64_t recipe, void* address, size_t bytes,
                              CUstream stream) noexcept = 0;
};

}  // namespace firn
