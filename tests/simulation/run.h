// Running seeds: in worker processes, so that one that aborts is a result like any other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/report.h"

namespace firn::sim {

struct RunOptions {
  std::string program;
  uint64_t first_seed = 1, seeds = 500;
  unsigned operations = 20'000, jobs = 2;
  bool print_hash = false, log_events = false, here = false, shrink = true;
  std::vector<uint64_t> only;  // operations; empty: all
  std::string oracle;  // that a canary has to be found by; empty: nothing may be found
};

/// 0: all seeds passed and every probe was met.
int run_seeds(const RunOptions& options);
int run_one(const RunOptions& options);

struct Outcome {
  bool failed = false;
  std::string oracle, text;
  uint64_t operation = 0, hash = 0;
};
/// The seed in a process of its own, without the operations in `skip`.
Outcome try_seed(uint64_t seed, unsigned operations, const std::vector<bool>& skip,
                 const std::string& history_to = {});
/// Leaves out whatever does not matter to the failure, for at most `seconds`.
std::vector<bool> shrink(uint64_t seed, unsigned operations, const Outcome& outcome,
                         unsigned seconds);
/// The oracle that a process's last lines on stderr stand for, of one that ended by a signal.
std::string oracle_of(const std::string& stderr_words);

}  // namespace firn::sim
