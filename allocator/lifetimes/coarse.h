// A program with fewer operators that needs as much memory and time: neighbours become one. For
// rehearsals that must be cheap (rehearse.h).
// Locks: none.
#pragma once

#include <cstdint>

#include "allocator/lifetimes/operators.h"

namespace firn::lifetimes {

/// Neighbours are joined while they take less than `ns_most` together and use no more than
/// `bytes_most`; an operator that exceeds either stays by itself. Values that live within one are
/// left out: in their place stands a value of the size that they have together at most. Values
/// below `bytes_least` are left out.
Operators coarse(const Operators& operators, uint64_t ns_most, uint64_t bytes_most,
                 uint64_t bytes_least);

}  // namespace firn::lifetimes
