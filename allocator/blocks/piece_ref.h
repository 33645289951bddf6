// A piece by name, for lists that outlive what they name.
#pragma once

#include <cstdint>

#include "allocator/blocks/block.h"
#include "firn/thread_safety.h"

namespace firn {

/// Checked against the block's generation and version on use: where they differ, the block has been
/// freed or written meanwhile, and the reference is void.
struct PieceRef {
  Block* block;
  uint32_t generation, version;
  uint32_t piece;
};
inline PieceRef piece_ref(Block& block, uint32_t piece) FIRN_HELD {
  return {&block, block.generation, block.version, piece};
}
inline bool current(const PieceRef& ref) FIRN_HELD {
  return ref.block->generation == ref.generation && ref.block->version == ref.version;
}
inline Piece& piece_of(const PieceRef& ref) FIRN_HELD { return ref.block->pieces[ref.piece]; }

}  // namespace firn
