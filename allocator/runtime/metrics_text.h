// A job's statistics for monitoring systems. Owns: nothing. Locks: none.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace firn {

/// The statistics document of one job as OpenMetrics text 1.0 (openmetrics.io): counters and gauges
/// with base units, labelled by process, device, directory and reason. Members that the document
/// lacks (a job of another version) are left out.
std::string metrics_text(const nlohmann::ordered_json& document);

}  // namespace firn
