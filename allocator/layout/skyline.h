// The greedy skyline: the lowest stretch of it takes, among the items that lie wholly in its
// sections, the one that ranks first; where none does, it is raised to its lower neighbour, and
// what was below is lost. O(n log n) but for the look-ups (lifetimes_tree.h).
// Owns: its state. Locks: none.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "allocator/layout/lifetimes_tree.h"
#include "allocator/layout/problem.h"

namespace firn::layout {

/// Which items of a stretch come first; among them the rank decides, and it decides alone where
/// there are none.
enum class SkylineChoice : uint8_t {
  rank,
  /// What fills the stretch; then what is alive where most is still to be placed, so that losses
  /// fall where there is room for them.
  most_left,
  /// The same, and among the latter what begins or ends with the stretch.
  most_left_at_ends,
};

struct SkylineRun {
  std::span<const uint32_t> rank;  // of each item: lower is better; they differ
  SkylineChoice choice = SkylineChoice::rank;
  /// A layout of this height or more is of no use.
  uint64_t height_end = 0;
};

/// Offsets of a layout; empty where it would not be below height_end, or `stop` was set.
std::vector<uint64_t> run_skyline(const Problem& problem, const LifetimesShape& shape,
                                  const SkylineRun& run, const std::atomic<bool>& stop);

}  // namespace firn::layout
