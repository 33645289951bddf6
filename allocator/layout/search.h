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

  /// Which section's candidates are tried: where there are fewest, or where they are the smallest
  /// share of what is to be placed there. Which is better differs by instance.
  enum class Branching : uint8_t { fewest, smallest_share };

  /// Keeps references to both. `stop` may be set by another thread.
  Search(const Problem& problem, const std::atomic<bool>& stop);

  /// Tries `branches_max` branches, items of lower rank first (ranks differ).
  Outcome attempt(uint64_t height, std::span<const uint32_t> rank, Branching branching,
                  uint64_t branches_max);

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
  void list_neighbours();
  void list_left();
  std::span<const uint32_t> left_in(uint32_t section) const {
    return {left_.data() + left_begin_[section], items_left_[section]};
  }
  void undo(size_t changes);

  const Problem& problem_;
  const std::atomic<bool>& stop_;
  const Sections sections_;
  std::vector<uint32_t> twins_;  // the next item of the same lifetime and size, in a ring

  std::vector<size_t> neighbours_begin_;
  std::vector<uint32_t> neighbours_;  // of each item, those alive with it, small ones first
  // Of each section: its items, those not placed in front (items_left_ of them).
  std::vector<size_t> left_begin_, places_begin_;
  std::vector<uint32_t> left_;
  std::vector<uint32_t> places_;      // of each item, in each of its sections' stretch of left_

  uint64_t height_ = 0;
  uint64_t branches_left_ = 0;
  Branching branching_ = Branching::fewest;
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
