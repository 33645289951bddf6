// copy_ and _foreach_copy_, which cross devices. They need no lock and own nothing.
#pragma once

#include <torch/library.h>

namespace firn::torch_ops {

/// Registers them under DispatchKey::CUDA.
void register_copies(torch::Library& library);

}  // namespace firn::torch_ops
