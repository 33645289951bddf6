// The words about memory of which little can ever leave: a block larger than half of the budget, as a
// rule a framework's pool, and memory that the program maps by itself.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace firn::preload {

/// Names the knob of the framework whose library is among those loaded (paths), unless the
/// environment has it. Empty where the block is at most half of the budget.
std::string pool_words(uint64_t bytes, uint64_t budget_bytes,
                       std::span<const std::string> libraries);
/// The same of memory that came from cuMemCreate, `bytes` in all. Empty up to half of the budget.
std::string own_memory_words(uint64_t bytes, uint64_t budget_bytes,
                             std::span<const std::string> libraries);
/// Says that once, of the first such block.
void tell_of_pool(uint64_t bytes, uint64_t budget_bytes);
/// Counts `bytes` more of the program's own, on all devices and whether it has given them back or not,
/// and says the words above once.
void tell_of_own_memory(uint64_t bytes, uint64_t budget_bytes);

}  // namespace firn::preload
