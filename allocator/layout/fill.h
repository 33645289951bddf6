// First fit into the room left: each item takes the lowest hole among the items placed already.
// Owns: nothing. Locks: none.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "allocator/layout/problem.h"

namespace firn::layout {

/// Offset of an item that is not placed yet.
inline constexpr uint64_t nowhere = ~uint64_t{0};

/// Gives `order`'s items, in turn, their lowest offset. False if one would end above `height`, or
/// `stop` was set; the offsets are then incomplete. Quadratic in the items alive at once.
bool fill(const Problem& problem, const Sections& sections, std::span<const uint32_t> order,
          uint64_t height, const std::atomic<bool>& stop, std::vector<uint64_t>& offsets);

}  // namespace firn::layout
