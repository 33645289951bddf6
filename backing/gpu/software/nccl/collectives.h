// The work of a kernel of the software NCCL: its pieces, one collective after the other and then
// all sends and receives side by side.
//
// Owns nothing. Locks: none; one kernel of a communicator's rank runs at a time.
#pragma once

#include <cstdint>
#include <span>

#include "backing/gpu/software/nccl/reduce.h"
#include "backing/gpu/software/nccl/transfer.h"

namespace firn::nccl {

enum class Function : uint8_t {
  all_reduce, broadcast, reduce, all_gather, reduce_scatter, all_to_all, gather, scatter, send,
  receive,
};
inline bool is_point_to_point(Function function) { return function >= Function::send; }
/// As in the kernel's name.
const char* name_of(Function function);

/// One piece of work, as it lies in a kernel's parameters or in the list in host memory.
struct alignas(8) Work {
  const char* from;       // device addresses
  char* to;
  const char* scalar_at;  // null, or where on the device the factor is
  uint64_t count;         // elements (of a rank's part, where ranks have parts)
  char scalar[8];
  int32_t root;           // or the peer
  Function function;
  uint8_t type, op;       // ncclDataType_t; ncclRedOp_t, ncclNumOps for a factor
  uint8_t unused;
};
static_assert(sizeof(Work) == 48);

/// Bytes that this rank's side of it passes on.
uint64_t bytes_of(const Work& work, int ranks);

/// Throws Aborted.
void run(SharedMemory& shared, Signals& signals, std::span<const Work> works);

}  // namespace firn::nccl
