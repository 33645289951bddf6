// Which blocks come back first while no period is known, as in a job's first iteration. A backward
// pass frees what the forward pass made, the last first, and needs the rest in that order. Blocks
// leave by age, so the one that left last was made, or used, last: blocks come back in the reverse of
// the order in which they left, for as long as the program frees more than it allocates.
//
// A program that does something else is left alone: before any comes back, blocks that it needs while
// they are away have to be among those that left last, and more come back only as those that did are
// used. What leaves again unused, or is needed out of that order, counts against it.
//
// Owns: the order, of blocks of the caller's. Lock: the engine's, around every call. There are at most
// twice as many entries as blocks, or 256.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <unordered_set>
#include <vector>

#include "allocator/blocks/block.h"
#include "firn/thread_safety.h"

namespace firn {

class ReverseOrder {
 public:
  /// Does the program free more than it allocates? It has `allocated` bytes at this moment, and
  /// changes of less than `step` since the most, or the least, say nothing.
  bool falls(uint64_t allocated, uint64_t step) FIRN_HELD {
    turn_ = falls_ ? std::min(turn_, allocated) : std::max(turn_, allocated);
    const uint64_t since = falls_ ? allocated - turn_ : turn_ - allocated;
    if (since < step) return falls_;
    turn_ = allocated;
    return falls_ = !falls_;
  }

  /// The program needs the block, which is away, at this moment.
  void needed(const Block& block) FIRN_HELD {
    const size_t near = std::min(left_.size(), 1 + left_.size() / near_part);
    const bool expected =
        std::any_of(left_.end() - static_cast<ptrdiff_t>(near), left_.end(),
                    [&](const Left& each) FIRN_HELD { return each.block == &block; });
    expected ? right() : wrong(2);
  }
  /// The block begins to come back, as the one that left last.
  void fetched(Block& block) FIRN_HELD { fetched_.push_back({&block, block.generation}); }
  /// May another one? Twice as many may wait for their use for each expectation that held.
  bool may_fetch() FIRN_HELD {
    std::erase_if(fetched_, [&](const Left& each) FIRN_HELD {
      const Block& block = *each.block;
      if (ended(each)) return true;
      if (block.coming > 0 || block.state() == State::faulting) return false;
      if (block.state() != State::resident) return true;  // it left again
      if (block.prefetched) return false;
      right();
      return true;
    });
    return right_ >= right_least && fetched_.size() < size_t{1} << (right_ - right_least);
  }

  /// The block begins to leave.
  void left(Block& block) FIRN_HELD {
    if (block.prefetched) wrong(4);  // it was not used
    try {
      if (left_.size() >= tidy_at_) tidy();
      left_.push_back({&block, block.generation});
    } catch (const std::bad_alloc&) {  // it comes back when it is used
    }
  }
  /// The block that left last, of those that `away` is true of; null: there is none. The others
  /// that left after it are forgotten.
  template <class Away>
  Block* last(Away&& away) FIRN_HELD {
    while (!left_.empty() && (ended(left_.back()) || !away(*left_.back().block))) left_.pop_back();
    return left_.empty() ? nullptr : left_.back().block;
  }
  size_t size() const FIRN_HELD { return left_.size(); }

 private:
  static constexpr size_t tidy_least = 256, near_part = 8;
  static constexpr int right_least = 2, right_most = 8;
  struct Left {
    Block* block;
    uint32_t generation;  // then
  };
  static bool ended(const Left& each) FIRN_HELD {
    return each.block->generation != each.generation;
  }
  void right() FIRN_HELD { right_ = std::min(right_ + 1, right_most); }
  void wrong(int as_much_as) FIRN_HELD { right_ = std::max(right_ - as_much_as, 0); }
  /// Leaves one entry for each block that has not ended: the last one.
  void tidy() FIRN_HELD {
    std::unordered_set<const Block*> seen;
    size_t kept = left_.size();
    for (size_t i = left_.size(); i-- > 0;)
      if (!ended(left_[i]) && seen.insert(left_[i].block).second) left_[--kept] = left_[i];
    left_.erase(left_.begin(), left_.begin() + static_cast<ptrdiff_t>(kept));
    tidy_at_ = std::max(tidy_least, 2 * left_.size());
  }

  std::vector<Left> left_ FIRN_GUARDED;
  std::vector<Left> fetched_ FIRN_GUARDED;  // not used since, and not gone
  size_t tidy_at_ FIRN_GUARDED = tidy_least;
  uint64_t turn_ FIRN_GUARDED = 0;   // the least allocated since it falls, or the most since it grows
  bool falls_ FIRN_GUARDED = false;
  int right_ FIRN_GUARDED = 0;       // expectations that held, less those that did not
};

}  // namespace firn
