// Jobs' own reports as text to read. Owns: nothing. Locks: none.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace firn::command {

/// The statistics document of one job.
std::string stats_text(const nlohmann::ordered_json& document);
/// The answer to "spill".
std::string spill_text(const nlohmann::ordered_json& document);
/// One look at all jobs (looks.h), as lines: a head, then for each job its devices and, indented,
/// up to `sites` of the lines or operators that waited longest. If lines have room for only `width`
/// characters, columns are left out in favour of the command.
std::vector<std::string> top_lines(const nlohmann::ordered_json& look, size_t sites,
                                   size_t width = SIZE_MAX);

}  // namespace firn::command
