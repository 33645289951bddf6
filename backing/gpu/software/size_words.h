// Sizes as the software GPU's settings have them.
#pragma once

#include <cmath>
#include <cstdlib>
#include <string>

namespace firn::software {

// "8GiB", "512MiB", "1.5GB", "4096", "16GiB/s". False when it is not of that form.
inline bool parse_size(const char* words, double* value) {
  char* end = nullptr;
  const double number = std::strtod(words, &end);
  if (end == words || !std::isfinite(number) || number < 0) return false;
  std::string unit = end;
  if (unit.ends_with("/s")) unit.resize(unit.size() - 2);
  double scale = 0;
  if (unit.empty() || unit == "B") scale = 1;
  const char* letters = "KMGT";
  for (int i = 0; i < 4; ++i) {
    const std::string letter(1, letters[i]);
    if (unit == letter + "iB" || unit == letter) scale = std::pow(1024.0, i + 1);
    if (unit == letter + "B") scale = std::pow(1000.0, i + 1);
  }
  *value = number * scale;
  return scale != 0;
}

}  // namespace firn::software
