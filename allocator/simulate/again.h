// The operators of a trace that may run again, by name: the only list of them.
// Owns: nothing. Locks: none.
#pragma once

#include <string_view>

namespace firn::simulate {

/// Whether PyTorch's operator of that name (`aten::gelu`, `gelu`, `aten::gelu.out`), run once more
/// with the same inputs, makes the same bits and does nothing else.
bool may_run_again(std::string_view name);
/// Of those: whether it runs again without the persistent values that it writes (Operator,
/// lifetimes/operators.h).
bool runs_again_without_state(std::string_view name);

}  // namespace firn::simulate
