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
  static std::unique_ptr<Proof> of(const Recipe& recipe, size_t result_at, CUstream stream);
  enum class Found : uint8_t {
    equal,
    put_back,  // it differed, and has the kept bytes again
    unknown,   // a copy failed: its bytes are undefined
  };
  /// Compares it, made again behind the stream's work, with the bytes that were kept.
  Found confirm(const Recipe& recipe, size_t result_at, CUstream stream) const;
  /// The kept bytes again, whatever is there. False: the copy failed.
  bool put_back(const Recipe& recipe, size_t result_at, CUstream stream) const;

 private:
  Proof(std::unique_ptr<std::byte[]> bytes, size_t count)
      : bytes_(std::move(bytes)), count_(count) {}

  std::unique_ptr<std::byte[]> bytes_;
  size_t count_;
};

/// Runs the operator again at once, into the result that it has just made, and compares. The caller
/// holds what it read and made. False: it cannot be trusted to make the same (the result is as it
/// was). Throws where even that could not be seen to.
bool prove(const Recipe& recipe, size_t result_at);

}  // namespace firn::pytorch
