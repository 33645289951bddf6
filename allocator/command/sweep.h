// A trace on machines in software: on one, or on many that differ in their GPU's memory.
// Owns: nothing. Locks: none.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>

#include "allocator/command/simulate_words.h"
#include "allocator/simulate/program_trace.h"
#include "allocator/simulate/remake.h"
#include "allocator/simulate/timeline.h"
#include "firn/result.h"

namespace firn::command {

/// The trace as it runs at that budget: operators over lists cut, and with what is made again.
Result<simulate::Remade> prepare_trace(const simulate::ProgramTrace& whole,
                                       const SimulatePlan& plan, uint64_t budget_bytes);

/// simulate_json()'s document. `timeline`: filled when not null; `progress`: called now and then.
/// Once per process, as there is one machine per process.
Result<nlohmann::ordered_json> run_simulation(
    const simulate::MachineOptions& options, const SimulatePlan& plan,
    const simulate::ProgramTrace& trace, simulate::Timeline* timeline = nullptr,
    std::function<void(unsigned iteration, size_t kernel)> progress = {});

/// The points of plan.sweep_bytes, each run in a process of its own: as sweep_point() or, where the
/// program does not run, sweep_failure() has it.
Result<nlohmann::ordered_json> run_sweep(const SimulatePlan& plan,
                                         const simulate::ProgramTrace& trace);

}  // namespace firn::command
