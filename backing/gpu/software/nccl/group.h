// Groups: a thread's requests between ncclGroupStart and ncclGroupEnd, and their launches.
//
// Owns: the calling thread's group. Locks: none.
#pragma once

#include <functional>

#include "backing/gpu/software/nccl/communicator.h"

namespace firn::nccl {

void group_start();
/// Makes the communicators that were asked for, each in a thread of its own since all wait for one
/// another, and launches the group's work: a kernel for each communicator.
ncclResult_t group_end();
/// Drops the group instead; `microseconds`: about how long it would have taken.
ncclResult_t group_simulate_end(float* microseconds);

/// Puts the work into the group, or launches it by itself where there is none.
ncclResult_t enqueue(ncclComm_t comm, CUstream stream, const Work& work);
ncclResult_t enqueue_making(std::function<ncclResult_t()> make);

}  // namespace firn::nccl
