// Elements of all ranks into one, in the ranks' order: the same bits whatever arrives first.
// Owns nothing. Locks: none.
#pragma once

#include <cstddef>
#include <vector>

#include "backing/gpu/software/nccl/abi.h"

namespace firn::nccl {

/// 0 if it is not a data type.
size_t size_of(ncclDataType_t type);

/// A reduction as a kernel does it: `op` is ncclSum to ncclAvg, or ncclNumOps for a sum of elements
/// that are each multiplied by the `scalar` (of the data type) before.
struct Reduction {
  ncclDataType_t type;
  ncclRedOp_t op;
  alignas(8) char scalar[8];
};

/// to[i] = the reduction of from[rank][i] over all ranks. `to` may be one of `from`. Sums of 16-
/// and 8-bit floats are kept in 32 bits and rounded once.
void reduce(const Reduction& reduction, const std::vector<const char*>& from, char* to,
            size_t count);

}  // namespace firn::nccl
