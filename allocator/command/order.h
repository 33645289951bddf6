// `firn order`: operators in an order in which little is alive at once, and a layout of it.
// Owns: nothing. Locks: none.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace firn::command {

struct OrderOptions {
  // Texts as given; nothing: not given.
  std::string prefix;
  std::optional<std::string> threads, out;
  std::string deadline = "10s", seed = "0";
  bool json = false;
};

CLI::App* add_order(CLI::App& app, OrderOptions& options);
int order(const OrderOptions& options);

}  // namespace firn::command
