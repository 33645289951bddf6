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
    const auto at = std::find_if(left_.rbegin(), left_.rend(), [&](const Left& each) FIRN_HELD {
      return each.block == &block;
    });
    // (Of few, it is among the last whatever the program does.)
    const auto later = static_cast<size_t>(at - left_.rbegin());
    wrong_ += (((2 * later + 1) * near_part < 2 * left_.size() ? 0. : 1.) - wrong_) * weight;
  }
  /// The block begins to come back, as the one that left last.
  void fetched(Block& block) FIRN_HELD { fetched_.push_back({&block, block.generation}); }
  /// May another one? Twice as many may wait for their use for each that was used.
  bool may_fetch() FIRN_HELD {
    std::erase_if(fetched_, [&](const Left& each) FIRN_HELD {
      const Block& block = *each.block;
      if (ended(each)) return true;
      if (block.coming > 0 || block.state() == State::faulting) return false;
      if (block.state() != State::resident) return true;  // it left again
      if (block.prefetched) return false;
      used_ = std::min(used_ + 1, used_most);
      return true;
    });
    return wrong_ < wrong_most && fetched_.size() < size_t{1} << used_;
  }

  /// The block begins to leave.
  void left(Block& block) FIRN_HELD {
    if (block.prefetched) wrong_ = 1, used_ = std::max(used_ - 4, 0);  // it was not used
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
  static constexpr size_t tidy_least = 256;
  // Chosen on traces of training, and so that of drawn programs without any order none takes 1.02
  // times as long as by age (tests/command/test_simulate_random.py).
  static constexpr size_t near_part = 5;              // of those that are away
  static constexpr double weight = .25, wrong_most = .6;
  static constexpr int used_most = 6;
  struct Left {
    Block* block;
    uint32_t generation;  // then
  };
  static bool ended(const Left& each) FIRN_HELD {
    return each.block->generation != each.generation;
  }
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
  double wrong_ FIRN_GUARDED = 1;    // part of the blocks needed lately that had not left last
  int used_ FIRN_GUARDED = 0;        // of those that came back
};

}  // namespace firn
