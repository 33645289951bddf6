// Hints on memory of which little can ever leave: a block larger than half of the budget, as a rule
// a framework's pool, and memory that the program maps by itself.
#pragma once

#include <cstdint>

namespace firn::preload {

/// For the first block larger than half of the budget: one line on stderr, once, that names the
/// loaded framework's knob, unless the environment has it.
void tell_of_pool(uint64_t bytes, uint64_t budget_bytes);
/// The same for memory from cuMemCreate. Adds `bytes` to a total of all devices, from which frees
/// are not subtracted.
void tell_of_own_memory(uint64_t bytes, uint64_t budget_bytes);

}  // namespace firn::preload
