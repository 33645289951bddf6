// A walk over a list of blocks that may lose the one that it is at.
#pragma once

#include <cstddef>
#include <vector>

#include "allocator/blocks/block.h"
#include "firn/thread_safety.h"

namespace firn {

/// Calls `act` for each block, which may take that one out of the list.
template <class Act>
void each_of(std::vector<Block*>& list, Act&& act) FIRN_HELD {
  for (size_t i = 0; i < list.size();) {
    Block* block = list[i];
    act(*block);
    if (i < list.size() && list[i] == block) ++i;
  }
}

}  // namespace firn
