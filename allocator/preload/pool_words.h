// The words about memory of which little can ever leave: a block larger than half of the budget, as a
// rule a framework's pool, and memory that the program maps by itself.
#pragma once

#include <cstdint>

namespace firn::preload {

/// Of the first block that is larger than half of the budget: stderr has a line, once, which names the
/// knob of the framework whose library is loaded, unless the environment has it.
void tell_of_pool(uint64_t bytes, uint64_t budget_bytes);
/// The same of memory that came from cuMemCreate. Counts `bytes` more, on all devices, whether the
/// program has given the others back or not.
void tell_of_own_memory(uint64_t bytes, uint64_t budget_bytes);

}  // namespace firn::preload
