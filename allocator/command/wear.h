// How long SSDs last at the rate at which a simulated job writes to them. Owns: nothing.
// Locks: none.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace firn::command {

/// Bytes that a job writes in a day, for a step of `steady_s` in which it writes `bytes`.
double bytes_per_day(double bytes, double steady_s);

/// From simulate_json()'s document, for SSDs that endure `endurance_bytes` each:
///   bytes_written             to all SSDs in a step
///   bytes_per_day, years      of all SSDs: `years` until their endurances together are used up
///   first_worn_years          until the first of them is worn out
///   ssds                      bytes_written (a step), bytes_per_day, years of each
/// Years (of 365.25 days) are null where nothing is written.
nlohmann::ordered_json wear_json(const nlohmann::ordered_json& result, double endurance_bytes);
/// The same in one line.
std::string wear_text(const nlohmann::ordered_json& wear);

}  // namespace firn::command
