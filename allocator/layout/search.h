// The exact search for a layout of at most a given height. The skyline is raised from below: at its
// lowest level some item has to lie, so one that can is put there or else lies strictly higher. An
// item that lies higher rests on another one, and this raises the floors of its sections; a section
// whose floor and what is still to be placed there exceed the height ends the branch. What is left
// falls apart into ranges of sections that have nothing to do with each other: each is searched for
// itself.
//
// One order of items per attempt, and short attempts: what a wrong early choice costs grows with
// the depth below it, so that starting over in another order finds what perseverance does not.
// Owns: its state. Locks: none.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "allocator/layout/problem.h"

namespace firn::layout {

class Search {
 public:
  enum class Outcome : uint8_t {
    found,     // offsets() is a layout of at most the height
    none,      // there is none: proven
    gave_up,   // the branches allowed are used up, or `stop` was set
  };

  /// Keeps references to both. `stop` may be set by another thread.
  Search(const Problem& problem, const std::atomic<bool>& stop);

  /// Tries `branches_max` branches, items of lower rank first (ranks differ). `height` at least the load.
  Outcome attempt(uint64_t height, std::span<const uint32_t> rank, uint64_t branches_max);

  std::span<const uint64_t> offsets() const { return offsets_; }

 private:
  struct Change {
    enum class Kind : uint8_t { floor, bound, placed } kind;
    uint32_t index;
    uint64_t before;
  };
  struct Range {
    uint32_t begin, end;
  };

  void reset(uint64_t height, std::span<const uint32_t> rank);
  Outcome solve(Range range);
  Outcome branch(Range range);
  /// An item that can lie at the lowest level of the range: the first in rank where there is the
  /// least choice.
  uint32_t choose(Range range) const;
  bool place(uint32_t item);
  bool exclude(uint32_t item);
  bool raise_floor(uint32_t section, uint64_t floor);
  bool raise_bound(uint32_t item, uint64_t bound);
  /// Floors up to the lowest bound in each section that changed, and what follows from that.
  bool settle();
  void mark_dirty(uint32_t section);
  void undo(size_t changes);

  const Problem& problem_;
  const std::atomic<bool>& stop_;
  const Sections sections_;
  std::vector<uint32_t> twins_;  // the next item of the same lifetime and size, in a ring

  uint64_t height_ = 0;
  uint64_t branches_left_ = 0;
  std::span<const uint32_t> rank_;
  // Of each section: all below is decided; what is not placed yet, in bytes and in items.
  std::vector<uint64_t> floors_, bytes_left_;
  std::vector<uint32_t> items_left_;
  std::vector<uint32_t> crossing_left_;  // of them, those that are in the section before too
  // Of each item: no lower offset is possible; once placed: the offset.
  std::vector<uint64_t> offsets_;
  std::vector<uint8_t> placed_;
  std::vector<Change> changes_;
  std::vector<uint32_t> dirty_;
  std::vector<uint8_t> is_dirty_;
};

}  // namespace firn::layout
