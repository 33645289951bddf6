// `firn doctor`: reports what this machine offers, what Firn will use of it, and why not better.
// Owns: nothing. Locks: none.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace firn::command {

struct DoctorOptions {
  std::vector<std::string> dirs;  // none: those of the configuration
  bool json = false;
  bool markdown = false;  // only the knobs, as README.md's table
  std::string device = "auto";            // with COMMAND: as of `firn run`
  std::optional<std::string> gpu_memory;
};

CLI::App* add_doctor(CLI::App& app, DoctorOptions& options);
/// With a COMMAND: runs it, and reports which of its driver calls Firn saw (coverage.h).
int doctor(const DoctorOptions& options, const std::vector<std::string>& command);

}  // namespace firn::command
