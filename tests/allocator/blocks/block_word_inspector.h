// Puts any bits into a block's word, for tests of what may follow.
#pragma once

#include "allocator/blocks/block_word.h"

namespace firn {

class BlockWordInspector {
 public:
  static void put(BlockWord& word, uint64_t bits) { word.bits_.store(bits); }
};

}  // namespace firn
