// The program that follows from what is made again (remake.h): the original operators in their
// order, and before each the operators that run again for it. A value that is made again ends with
// its last use before the cut; a new value has its bytes from then on. Values that are kept for
// what is made of them live on until then. Every original operator reads what it read in the
// original program, and every persistent value ends as it ended there.
// Locks: none.
#pragma once

#include <cstdint>

#include "allocator/lifetimes/remake.h"

namespace firn::lifetimes {

struct Rewritten {
  /// `Operator::source` is the original's; values beyond the original's are made again.
  Operators operators;
  uint64_t values = 0, bytes = 0;  // of the original that end at the cut, and are made again
  uint64_t ns = 0;                 // what runs again takes
};

Rewritten rewrite(const Operators& operators, const Versions& versions, const Remake& remake);

}  // namespace firn::lifetimes
