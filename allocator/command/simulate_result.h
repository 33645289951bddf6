// `firn simulate`'s findings as JSON and as text. Owns: nothing. Locks: none.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "allocator/command/simulate_words.h"
#include "allocator/simulate/remake.h"
#include "allocator/simulate/replay.h"

namespace firn::command {

/// The contract's keys, and more behind them. Read back by sweep_point().
nlohmann::ordered_json simulate_json(const simulate::ReplayResult& result);
/// Adds what was made again: nothing, where the trace runs as it is.
void add_remade(nlohmann::ordered_json& result, const simulate::Remade& remade);
/// Adds `wear` (wear.h) where an endurance was given.
void add_wear(nlohmann::ordered_json& result, const SimulatePlan& plan);
std::string simulate_text(const nlohmann::ordered_json& result, const SimulatePlan& plan,
                          const std::string& prefix, size_t kernels);

/// One budget of a sweep, from simulate_json()'s document.
nlohmann::ordered_json sweep_point(uint64_t budget_bytes, const nlohmann::ordered_json& result,
                                   const SimulatePlan& plan);
/// A budget on which the program does not run.
nlohmann::ordered_json sweep_failure(uint64_t budget_bytes, const std::string& why);
std::string sweep_text(const nlohmann::ordered_json& points);

}  // namespace firn::command
