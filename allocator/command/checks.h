// Checks before anything starts, beyond the options' syntax: sizes against the machine, directories
// against the store. Owns: nothing. Locks: none.
#pragma once

#include <string>

#include "allocator/command/machine.h"
#include "allocator/runtime/config.h"
#include "firn/store.h"

namespace firn::command {

/// The budget against the device's memory, host memory against the machine's. Errors name the knob.
Result<void> check_memory(const Config& config, uint64_t device_bytes,
                          const MachineReport& machine);

/// Whether a store can be opened in `dir` and has room for a piece at all.
Result<void> check_dir(const std::string& dir, const Config& config);

/// Why the program `command` uses CUDA without Firn seeing it; empty when it may be a PyTorch
/// program, or no CUDA program at all.
std::string past_firn(const std::string& command);

}  // namespace firn::command
