// `firn simulate`: runs a program's trace on a machine in software, and prints how near to the
// ideal it is. Owns: nothing. Locks: none.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace firn::command {

struct SimulateOptions {
  // Texts as given; nothing: not given.
  std::string prefix;
  std::optional<std::string> gpu_memory, host, sweep, endurance, timeline, plot;
  std::string ssd_read = "3.2GiB/s", ssd_write = "3.2GiB/s", pcie = "15.754GiB/s";
  std::string ssd_latency = "20us", ssds = "1";
  std::string policy = "lifetime", iterations = "6", run_ahead = "0", spare = "0.0625",
              remake = "off";
  bool no_driver_costs = false;
  bool lifetimes = false;
  bool json = false;
};

CLI::App* add_simulate(CLI::App& app, SimulateOptions& options);
int simulate(const SimulateOptions& options);

}  // namespace firn::command
