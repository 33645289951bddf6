// `firn layout`: addresses for buffers whose lifetimes are known, as low as they can be.
// Owns: nothing. Locks: none.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace firn::command {

struct LayoutOptions {
  // Texts as given; nothing: not given.
  std::string instance;
  std::optional<std::string> capacity, threads, out, plot;
  std::string deadline = "10s", seed = "0";
  bool json = false;
};

CLI::App* add_layout(CLI::App& app, LayoutOptions& options);
int layout(const LayoutOptions& options);

}  // namespace firn::command
