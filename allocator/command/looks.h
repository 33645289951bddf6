// Looks at all jobs of this user, one after the other: each one's statistics, and how much has
// moved since the look before. Owns: the look before. Locks: none.
#pragma once

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

namespace firn::command {

/// Adds to a job's document how much has moved since the one `before` (null: none).
void add_rates(nlohmann::ordered_json& job, const nlohmann::ordered_json& before, double seconds);

class Looks {
 public:
  /// {"jobs": [...]}: each job's statistics document with "command"; its devices with
  /// out_bytes_s, in_bytes_s (over the link), faults_s, stalled (a part of the time; several
  /// threads may wait at once), its store with write_bytes_s and read_bytes_s, all since the look
  /// before (0 without one). A job that does not answer in time has "error" instead.
  nlohmann::ordered_json next(std::chrono::milliseconds patience);

 private:
  struct Before {
    std::chrono::steady_clock::time_point at;
    nlohmann::ordered_json document;
  };
  std::map<pid_t, Before> before_;
};

}  // namespace firn::command
