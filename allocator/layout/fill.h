// First fit into what is left: items find the lowest hole among those that lie already.
// Owns: nothing. Locks: none.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "allocator/layout/problem.h"

namespace firn::layout {

/// Offset of an item that does not lie yet.
inline constexpr uint64_t nowhere = ~uint64_t{0};

/// Gives `order`'s items, in turn, their lowest offset. False where one would be above `height`, or
/// `stop` was set; offsets are then part done. Quadratic in what is alive at once.
bool fill(const Problem& problem, const Sections& sections, std::span<const uint32_t> order,
          uint64_t height, const std::atomic<bool>& stop, std::vector<uint64_t>& offsets);

}  // namespace firn::layout
