// `firn simulate`'s words as values. Errors name the option. Owns: nothing. Locks: none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "allocator/command/simulate.h"
#include "allocator/simulate/machine.h"
#include "firn/result.h"

namespace firn::command {

inline constexpr uint64_t host_bytes_least = 256u << 20;  // of --host

struct SimulatePlan {
  simulate::MachineOptions machine;       // gpu_bytes: of the single run
  std::vector<uint64_t> sweep_bytes;      // budgets; empty: a single run
  unsigned iterations = 6, run_ahead = 0;
  bool remake = false;                    // what is cheaper so is made again, and does not move
  std::optional<double> endurance_bytes;  // total bytes written that each SSD lasts
  std::string timeline, plot;             // absolute paths; empty: not wanted
};

Result<SimulatePlan> parse_simulate(const SimulateOptions& options);

/// "3.2GiB/s", "7GB/s": bytes per second.
Result<double> parse_bandwidth(std::string_view word);
/// "20us", "0", "1.5ms": nanoseconds, at most `ns_most` (whole seconds).
Result<uint64_t> parse_time(std::string_view word, uint64_t ns_most);
/// A whole number; the error names the option.
Result<uint64_t> parse_number(const char* option, const std::string& word, uint64_t least,
                              uint64_t most);

}  // namespace firn::command
