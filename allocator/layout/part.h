// One part of an instance that shares no section with the rest, and the best layout of it so far.
// Work on it comes in numbered steps: greedy skylines, then exact searches (of all items, or of
// those near the peak) for heights between the proven bound and the best so far. A step's number,
// the seed and the results of earlier steps determine what it does.
// Owns: the layout. Locks: its own, around shared data; never held while a step works.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "allocator/layout/core.h"
#include "allocator/layout/lifetimes_tree.h"
#include "allocator/layout/problem.h"

namespace firn::layout {

class Part {
 public:
  /// Starts with a valid layout. `goal`: a height that is good enough. `steps`: at most so many.
  Part(Problem problem, std::vector<uint32_t> members, uint64_t goal, uint64_t seed,
       uint64_t steps);

  /// A thread's data between steps. It is of one part: dropped when the thread changes parts.
  struct Bench {
    const Part* part = nullptr;
    std::unique_ptr<CoreSearch> core;
  };
  /// Does the next step; `stop` ends it early.
  void step(Bench& bench, const std::atomic<bool>& stop);

  /// The height is good enough, or proven to be the least, or every step was begun.
  bool done() const {
    return done_.load(std::memory_order_acquire) ||
           next_step_.load(std::memory_order_relaxed) >= steps_;
  }
  uint64_t height();
  /// Call the following only while no step is under way.
  bool proven() const { return height_ <= impossible_end_; }
  const std::vector<uint64_t>& offsets() const { return offsets_; }
  const std::vector<uint32_t>& members() const { return members_; }
  const Problem& problem() const { return problem_; }

 private:
  void skyline_step(uint64_t number, const std::atomic<bool>& stop);
  void search_step(uint64_t number, Bench& bench, const std::atomic<bool>& stop);
  uint64_t height_to_try(uint64_t number);
  const LifetimesShape& shape();
  void take_offsets(std::span<const uint64_t> offsets);
  void prove_impossible(uint64_t height);

  const Problem problem_;
  const std::vector<uint32_t> members_;  // of the instance's buffers, for each item
  const uint64_t goal_, seed_, steps_;
  bool searched_whole_ = false, searched_ = false;  // small enough to be searched: whole, at all
  std::atomic<uint64_t> next_step_{0};
  std::atomic<bool> done_{false};

  std::mutex mutex_;  // guards what follows
  std::unique_ptr<LifetimesShape> shape_;
  std::vector<uint64_t> offsets_;
  uint64_t height_ = 0;
  uint64_t impossible_end_ = 0;  // lower heights are impossible
};

}  // namespace firn::layout
