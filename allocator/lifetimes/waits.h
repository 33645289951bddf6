// The least that a program waits for its memory at a budget, whoever moves its bytes: how much must
// leave and come back between two operators, against the time in between. A filter for many
// programs, of which the best are rehearsed (rehearse.h). A pure function, deterministic.
//
// The statements, for operators j < k of a program that repeats:
//   what k uses, and what is alive then, was made by j or later, and is used after k, exceeds the
//   budget by bytes that left since j ended;
//   what k uses, and what is alive then and used by n or before, exceeds it by bytes that come
//   until n begins.
// Where either takes longer over the link (or, beyond host memory, over the store) than the
// operators in between, there are waits, and waits of intervals without a common one add up: the
// most of them by dynamic programming (the same bound as bench/jobs/bound.py, looked at from fewer
// operators).
//
// Cost: O(n + samples^2), n uses.
#pragma once

#include <cstdint>

#include "allocator/lifetimes/operators.h"

namespace firn::lifetimes {

/// Bytes, and bytes per second; write and read 0: no store.
struct WaitsMachine {
  uint64_t budget = 0, host = 0;
  double link = 0, write = 0, read = 0;
};

/// Nanoseconds of waits in an iteration that others precede. `samples`: operators looked at.
/// Infinite: an operator alone exceeds the budget.
double least_waits_ns(const Operators& operators, const WaitsMachine& machine,
                      uint32_t samples = 192);

}  // namespace firn::lifetimes
