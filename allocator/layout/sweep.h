// The first layout: items in order of time, each into the smallest hole that holds it, like an
// allocator that does not know the future. O(n log n), so that there is always an answer.
// Owns: nothing. Locks: none.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/layout/problem.h"

namespace firn::layout {

/// Offsets of each item.
std::vector<uint64_t> sweep(const Problem& problem);

}  // namespace firn::layout
