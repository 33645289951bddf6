// `firn doctor`: what this machine offers, what Firn will use of it and why not better.
// Owns: nothing. Locks: none.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace firn::command {

struct DoctorOptions {
  std::vector<std::string> dirs;  // none: those of the configuration
  bool json = false;
  bool markdown = false;  // only the knobs, as README's table
};

CLI::App* add_doctor(CLI::App& app, DoctorOptions& options);
int doctor(const DoctorOptions& options);

}  // namespace firn::command
