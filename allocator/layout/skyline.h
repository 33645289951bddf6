// The greedy skyline: its lowest stretch takes the best-ranked item that lies wholly in its
// sections; without one, it rises to its lower neighbour, and the room below is lost. O(n log n)
// but for the look-ups (lifetimes_tree.h).
// Owns: its state. Locks: none.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "allocator/layout/lifetimes_tree.h"
#include "allocator/layout/problem.h"

namespace firn::layout {

/// The items of a stretch that come first; among them the rank decides. Without any, the rank alone
/// decides.
enum class SkylineChoice : uint8_t {
  rank,
  /// Items that fill the stretch; then items alive where most is still to be placed, so that losses
  /// fall where there is room for them.
  most_left,
  /// The same, and among the latter, items that begin or end with the stretch.
  most_left_at_ends,
};

struct SkylineRun {
  std::span<const uint32_t> rank;  // of each item: lower is better; they differ
  SkylineChoice choice = SkylineChoice::rank;
  /// A layout of this height or more is of no use.
  uint64_t height_end = 0;
};

/// Offsets of a layout; empty if it would reach height_end, or `stop` was set.
std::vector<uint64_t> run_skyline(const Problem& problem, const LifetimesShape& shape,
                                  const SkylineRun& run, const std::atomic<bool>& stop);

}  // namespace firn::layout
