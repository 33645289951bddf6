// The words about a block so large that little of it can ever leave: a framework's pool as a rule.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace firn::preload {

/// Names the knob of the framework whose library is among those loaded (paths), unless the
/// environment has it. Empty where the block is at most half of the budget.
std::string pool_words(uint64_t bytes, uint64_t budget_bytes,
                       std::span<const std::string> libraries);
/// Says that once, of the first such block.
void tell_of_pool(uint64_t bytes, uint64_t budget_bytes);

}  // namespace firn::preload
