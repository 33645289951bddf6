// The exact search for a layout of at most a given height. It raises the skyline from below: at its
// lowest level some item has to lie, so a candidate is either placed there or lies strictly higher.
// An item that lies higher rests on another one, which raises the floors of its sections; a branch
// ends when a section's floor and the bytes still to be placed there exceed the height. The
// remaining items fall apart into independent ranges of sections; each is searched by itself.
//
// One order of items per attempt, and short attempts: the cost of a wrong early choice grows with
// the depth below it, so starting over in another order finds what perseverance does not.
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

  /// The section whose candidates are tried: where there are fewest, or where they are the smallest
  /// share of what is to be placed there. The better choice differs by instance.
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
  struct SectionRange {
    uint32_t begin, end;
  };

  void reset(uint64_t height, std::span<const uint32_t> rank);
  Outcome solve(SectionRange range);
  Outcome branch(SectionRange range);
  /// An item that can lie at the lowest level of the range: the first in rank in the section with
  /// the least choice.
  uint32_t choose(SectionRange range) const;
  bool place(uint32_t item);
  bool exclude(uint32_t item);
  bool raise_floor(uint32_t section, uint64_t floor);
  bool raise_bound(uint32_t item, uint64_t bound);
  /// Raises the floor of each section that changed to its lowest bound. False: the branch ends.
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
  // Per section: its items, the unplaced ones (items_left_ of them) in front.
  std::vector<size_t> left_begin_, places_begin_;
  std::vector<uint32_t> left_;
  std::vector<uint32_t> places_;      // of each item, in each of its sections' stretch of left_

  uint64_t height_ = 0;
  uint64_t branches_left_ = 0;
  Branching branching_ = Branching::fewest;
  std::span<const uint32_t> rank_;
  // Per section: the level below which all is decided; bytes and items not placed yet.
  std::vector<uint64_t> floors_, bytes_left_;
  std::vector<uint32_t> items_left_;
  std::vector<uint32_t> crossing_left_;  // of these, the ones in the section before too
  // Per item: its lowest possible offset; once placed: its offset.
  std::vector<uint64_t> offsets_;
  std::vector<uint8_t> placed_;
  std::vector<Change> changes_;
  std::vector<uint32_t> dirty_;
  std::vector<uint8_t> is_dirty_;
};

}  // namespace firn::layout
