// Locks: none.
#include "allocator/layout/skyline.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <queue>

#include "allocator/layout/load_tree.h"

namespace firn::layout {
namespace {

constexpr uint32_t none = LifetimesTree::none;

/// The skyline's stretches, each known by its first section, and which of them is lowest.
class Stretches {
 public:
  explicit Stretches(uint32_t sections) : of_(sections), sections_(sections) {
    set(0, sections, 0);
  }

  struct Lowest {
    uint32_t begin, end;
    uint64_t level;
  };
  /// Takes the lowest one out: place() or join() puts its successors back.
  Lowest take_lowest() {
    for (;;) {
      const Candidate candidate = lowest_.top();
      lowest_.pop();
      const Stretch& stretch = of_[candidate.begin];
      if (stretch.stamp == candidate.stamp) return {candidate.begin, stretch.end, stretch.level};
    }
  }
  /// [begin, end) of `from` goes up to `top`, the rest stays.
  void place(const Lowest& from, uint32_t begin, uint32_t end, uint64_t top) {
    if (end < from.end) set(end, from.end, from.level);
    if (begin > from.begin) set(from.begin, begin, from.level);
    join(begin, end, top);
  }
  /// Its lower neighbour's level; nullopt if it has none.
  std::optional<uint64_t> neighbour_level(const Lowest& stretch) const {
    uint64_t level = std::numeric_limits<uint64_t>::max();
    if (stretch.begin > 0) level = of_[begin_before(stretch.begin)].level;
    if (stretch.end < sections_) level = std::min(level, of_[stretch.end].level);
    if (stretch.begin == 0 && stretch.end == sections_) return std::nullopt;
    return level;
  }
  void join(uint32_t begin, uint32_t end, uint64_t level) {
    if (begin > 0 && of_[begin_before(begin)].level == level) {
      of_[begin].stamp = 0;
      begin = begin_before(begin);
    }
    if (end < sections_ && of_[end].level == level) {
      of_[end].stamp = 0;
      end = of_[end].end;
    }
    set(begin, end, level);
  }

 private:
  struct Stretch {
    uint64_t level = 0;
    uint32_t end = 0, begin_of_end = 0;  // the latter: of the stretch that ends at this section
    uint32_t stamp = 0;                  // 0: no stretch begins here
  };
  struct Candidate {  // for the lowest, unless its stretch has changed since
    uint64_t level;
    uint32_t begin, stamp;
    bool operator<(const Candidate& other) const {  // the heap's top is the largest
      return level != other.level ? level > other.level : begin > other.begin;
    }
  };

  uint32_t begin_before(uint32_t section) const { return of_[section - 1].begin_of_end; }
  void set(uint32_t begin, uint32_t end, uint64_t level) {
    of_[begin].level = level;
    of_[begin].end = end;
    of_[begin].stamp = ++stamps_;
    of_[end - 1].begin_of_end = begin;
    lowest_.push({level, begin, stamps_});
  }

  std::vector<Stretch> of_;  // by first section
  const uint32_t sections_;
  uint32_t stamps_ = 0;
  std::priority_queue<Candidate> lowest_;
};

uint32_t choose(const LifetimesTree& waiting, const Stretches::Lowest& lowest, uint32_t most,
                bool at_ends) {
  const uint32_t filling = waiting.best_filling(lowest.begin, lowest.end);
  if (filling != none) return filling;
  if (at_ends)
    for (uint32_t end : {lowest.begin, lowest.end - 1}) {
      const uint32_t chosen = waiting.best_over(lowest.begin, lowest.end, std::min(most, end),
                                                std::max(most, end));
      if (chosen != none) return chosen;
    }
  return waiting.best_over(lowest.begin, lowest.end, most, most);
}

}  // namespace

std::vector<uint64_t> run_skyline(const Problem& problem, const LifetimesShape& shape,
                                  const SkylineRun& run, const std::atomic<bool>& stop) {
  std::vector<uint64_t> offsets(problem.items.size());
  LifetimesTree waiting(shape, run.rank);
  std::optional<LoadTree> left;
  if (run.choice != SkylineChoice::rank) left.emplace(problem.loads);
  Stretches stretches(problem.sections());
  for (size_t placed = 0; placed < offsets.size();) {
    if (stop.load(std::memory_order_relaxed)) return {};
    const Stretches::Lowest lowest = stretches.take_lowest();
    uint32_t chosen = none;
    if (left) {
      const LoadTree::Most most = left->most(lowest.begin, lowest.end);
      if (lowest.level + most.bytes >= run.height_end) return {};
      if (most.bytes > 0)
        chosen = choose(waiting, lowest, most.section,
                        run.choice == SkylineChoice::most_left_at_ends);
    }
    if (chosen == none) chosen = waiting.best(lowest.begin, lowest.end);
    if (chosen == none) {
      stretches.join(lowest.begin, lowest.end, *stretches.neighbour_level(lowest));
      continue;
    }
    const Item& item = problem.items[chosen];
    const uint64_t top = lowest.level + item.size;
    if (top >= run.height_end) return {};
    offsets[chosen] = lowest.level;
    waiting.take(chosen);
    if (left) left->take(item.first, item.last, item.size);
    stretches.place(lowest, item.first, item.last, top);
    ++placed;
  }
  return offsets;
}

}  // namespace firn::layout
