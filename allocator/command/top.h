// `firn top`: live jobs, on a terminal, once, or as JSON. Owns: nothing. Locks: none.
#pragma once

#include <CLI/CLI.hpp>

namespace firn::command {

struct TopOptions {
  bool once = false;
  bool json = false;
};

CLI::App* add_top(CLI::App& app, TopOptions& options);
int top(const TopOptions& options);

}  // namespace firn::command
