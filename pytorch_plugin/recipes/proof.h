// Does an operator that runs again make the bytes that it made? They are kept in host memory and
// compared. Where they differ, those from before are put back, the operator is named once, and no
// recipe of it is given any more.
//
// Owns: those bytes. Locks: none. Every call waits for the stream.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>

#include "pytorch_plugin/recipes/recipe.h"

namespace firn::pytorch {

class Proof {
 public:
  /// Keeps the bytes of that result as they are behind the stream's work; null: there is no host
  /// memory for them, or the copy failed. The caller holds the block.
  static std::unique_ptr<Proof> of(const Recipe& recipe, size_t result_at, CUstream stream) noexcept;
  /// Compares it, made again behind the stream's work, with the bytes that were kept. False: it
  /// differed, and has those bytes again.
  bool confirm(const Recipe& recipe, size_t result_at, CUstream stream) const noexcept;

 private:
  Proof(std::unique_ptr<std::byte[]> bytes, size_t count)
      : bytes_(std::move(bytes)), count_(count) {}

  std::unique_ptr<std::byte[]> bytes_;
  size_t count_;
};

/// Runs the operator again at once, into the result that it has just made, and compares. The caller
/// holds what it read and made. False: it differs (the result is as it was), or it failed.
bool prove(const Recipe& recipe, size_t result_at) noexcept;

}  // namespace firn::pytorch
