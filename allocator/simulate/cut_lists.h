// Operators over lists of tensors (aten::_foreach_sqrt, aten::_fused_adamw_), as PyTorch with Firn
// carries them out where memory is short: in slices of the lists (pytorch_plugin/list_operators.h).
#pragma once

#include <cstdint>

#include "allocator/simulate/program_trace.h"

namespace firn::simulate {

/// `trace` as it runs with `gpu_bytes`: an operator over lists whose tensors are more than half of
/// that becomes several kernels, each of tensors within an eighth of it, or of one element of each
/// list. A slice takes its part of the time, by bytes. An operator stays whole if its lists cannot
/// be separated (a tensor is in two).
/// lists apart (a tensor that is in two of them), the operator stays whole.
ProgramTrace cut_lists(const ProgramTrace& trace, uint64_t gpu_bytes);

}  // namespace firn::simulate
