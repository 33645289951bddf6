// `firn doctor -- COMMAND`: reports what COMMAND asked of the driver, and what of it Firn saw.
// Owns: nothing. Locks: none.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace firn::command {

struct CoverageOptions {
  std::string device = "auto";  // as RunOptions have it
  std::optional<std::string> gpu_memory;
  bool json = false;
};

/// Runs COMMAND as `firn run` would, its standard output going to standard error, and prints the
/// report when it has ended. COMMAND's exit status.
int report_coverage(const CoverageOptions& options, const std::vector<std::string>& command);

/// The report, for people.
std::string coverage_text(const nlohmann::ordered_json& report);

}  // namespace firn::command
