// The least time a tiny program can take on a machine with one way out and one way in, whatever is
// decided: an exact search, for judging decisions.
//
// States: where in the program, the pages of every block that are on the device dirty and clean,
// and a transfer on each way, in time units. A* (Hart, Nilsson, Raphael 1968) over the instants at
// which something ends. Nothing better begins in between: whatever does can begin as early as the
// last of them without taking memory from anything, except a kernel with births, which may also
// wait. Among clean pages those used last are dropped, and among those that are away those used
// first are read: either exchange makes no schedule longer (Belady 1966), as all pages take the
// same time. Memory is dropped only where it is needed. A copy may be made of what the kernel that
// runs only reads, but not of what it writes.
#pragma once

#include <cstdint>

#include "allocator/simulate/kernels.h"

namespace firn::program {

struct TinyMachine {
  uint64_t capacity = 0;       // pages
  uint64_t out_ns = 1, in_ns = 1;  // of a page, at most 7
  bool warm = false;           // Script::start_warm(), else all is away
};

struct Optimum {
  uint64_t ns = 0;      // 0: not found within the bound
  uint64_t states = 0;  // looked at
};

/// At most 5 blocks of at most 3 pages, 31 kernels in all periods of at most 15 ns each.
/// `states_most`: given up beyond.
Optimum optimum(const Kernels& program, unsigned periods, const TinyMachine& machine,
                uint64_t states_most);

}  // namespace firn::program
