// Programs of kernels (allocator/simulate/kernels.h) drawn at random within bounds.
#pragma once

#include <cstdint>
#include <random>

#include "allocator/simulate/kernels.h"

namespace firn::program {

struct Bounds {
  uint64_t blocks[2], size[2], kernels[2], ns[2];  // least, most
  double writes = 0.3;                             // share of the uses
  double persistent = 0.5;                         // share of the blocks
  uint64_t uses = 2;                               // of a block beyond the first, on average
};

Kernels draw(const Bounds& bounds, std::mt19937_64& random);

}  // namespace firn::program
