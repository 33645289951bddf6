// One iteration, cut out of a recording, in the terms of a trace: tensors that are alive in every
// iteration (persistent) or from their first use to their last (transient), and kernels in order.
//
// The period is found by allocator/lifetimes/history.h, and taken from the last point where the
// same operators ran in the same order twice. It is cut where the least memory is alive. A block
// that is alive across the cut, though not for good (a gradient that the next iteration frees), is
// written as persistent: more memory than the program has, never less.
//
// A transient ends with its last use, but programs keep memory for longer (a tensor that is saved
// for backward and not needed): then the last kernel before the free has it among its inputs too,
// so that it takes room as long as in the program. If it was spilled, it comes back for that
// kernel, once more than in the program.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/record/recording.h"

namespace firn::record {

struct Iteration {
  struct Tensor {
    uint64_t bytes = 0;
    bool persistent = false;
  };
  struct Kernel {
    uint64_t duration_ns = 1;  // at least 1
    uint64_t uses_at = 0;      // in uses: inputs, then outputs; tensors
    uint32_t name = 0;         // of the recording's kernel of this number
    uint32_t inputs = 0, outputs = 0;
  };
  std::vector<Tensor> tensors;
  std::vector<Kernel> kernels;
  std::vector<uint32_t> uses;
  bool periodic = false;    // false: nothing repeats; everything, as one iteration
  uint64_t untimed = 0;     // kernels whose time is unknown: 1 ns
};

/// Empty when no kernel was recorded. A pure function of its argument.
Iteration cut_iteration(const Recording& recording);

}  // namespace firn::record
