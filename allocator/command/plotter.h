// Pictures, drawn by the Python module simulate_plot.py of the package with matplotlib.
// Owns: nothing. Locks: none.
#pragma once

#include <filesystem>
#include <string>

#include "firn/result.h"

namespace firn::command {

class Plotter {
 public:
  /// Finds the module and a Python that has matplotlib; the error says which is missing.
  static Result<Plotter> find();
  /// Draws `data` (JSON) into the PNG file `path`.
  Result<void> draw(const std::string& data, const std::string& path) const;

 private:
  std::filesystem::path python_, module_;
};

}  // namespace firn::command
