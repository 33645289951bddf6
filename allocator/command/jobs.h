// `firn stats PID` and `firn spill PID`: print a running job's statistics, and spill its memory
// while it is idle. Owns: nothing. Locks: none.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace firn::command {

struct JobOptions {
  std::string process;  // as given
  bool json = false;
  bool metrics = false;
};

CLI::App* add_stats(CLI::App& app, JobOptions& options);
int stats(const JobOptions& options);

CLI::App* add_spill(CLI::App& app, JobOptions& options);
int spill(const JobOptions& options);

}  // namespace firn::command
