// `firn run`: checks everything up front, sets the environment, becomes COMMAND.
// Owns: nothing. Locks: none.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace firn::command {

struct RunOptions {
  // Texts as given; nothing: not given.
  std::optional<std::string> budget, host, policy, trace, stats, watch, remake, relay;
  std::vector<std::string> dirs;
  std::string device = "auto";            // auto | software
  std::optional<std::string> gpu_memory;  // the software GPU's capacity
  bool adversarial = false, verify = false, guard = false, poison = false;  // tests
};

CLI::App* add_run(CLI::App& app, RunOptions& options);

/// Does not return when COMMAND started; else the exit status, after one line on standard error.
int run(const RunOptions& options, const std::vector<std::string>& command);

}  // namespace firn::command
