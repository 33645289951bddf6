// Workspaces of matrix products, as PyTorch keeps them for cuBLASLt: one per stream, allocated by
// the first operator that needs it there, kept, and passed to every later product's launch, though
// no operator has it among its arguments.
//
// FIRN_GPU_WORKSPACE=BYTES is its size; 0, the default: there are none.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <string>

namespace firn::torch_ops {

/// Does `op` ("aten::mm") multiply matrices by a library that has a workspace?
bool has_workspace(const std::string& op);

/// The stream's workspace, whose first four bytes a memset in stream order has set to zero, as
/// cuBLASLt's are before each product; 0 where there are none. Not under stream capture. Throws
/// c10::Error with the words of PyTorch where the driver refuses the memset.
uint64_t workspace_of(c10::cuda::CUDAStream stream);

}  // namespace firn::torch_ops
