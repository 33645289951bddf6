// Launches the kernels in which the software NCCL works, as the real one launches its own:
// cuLaunchKernelEx on the stream that was given, with the work in the kernel's parameters, or, where
// it is more than fits, in a list in host memory that they point at.
//
// Owns: the kernels made (never freed). Locks: its own, for those.
#pragma once

#include <span>

#include "backing/gpu/software/nccl/communicator.h"

namespace firn::nccl {

/// A kernel for all of `works`, on the first of the `streams`, behind the others' work; the others'
/// later work is behind it.
ncclResult_t launch(ncclComm_t comm, std::span<const CUstream> streams,
                    std::span<const Work> works);

}  // namespace firn::nccl
