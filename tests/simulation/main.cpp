// Seeded simulations of the engine, in worker processes.
//
//   tags_test                     FIRN_SEEDS seeds of FIRN_OPERATIONS each, FIRN_JOBS workers
//   tags_test --same              the first of them twice, each time in a process of its own, with
//                                 other addresses: the same events in the same order
//   tags_test SEED [OPERATIONS]   that seed alone. --hash prints its hash of events, --log what
//                                 happens, --only=3,7 leaves out all other operations
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "tests/simulation/run.h"

using namespace firn::sim;

namespace {

/// What a new process says of the seed's events.
std::string hash_of(const RunOptions& options, uint64_t seed) {
  const std::string command = options.program + " " + std::to_string(seed) + " " +
                              std::to_string(options.operations) + " --hash --no-shrink";
  std::FILE* answer = ::popen(command.c_str(), "r");
  if (!answer) return {};
  char words[64] = {};
  const bool read = std::fgets(words, sizeof words, answer) != nullptr;
  return ::pclose(answer) == 0 && read ? words : std::string();
}

int run_same(const RunOptions& options) {
  unsigned differ = 0;
  for (uint64_t seed = options.first_seed; seed < options.first_seed + options.seeds; ++seed) {
    const std::string once = hash_of(options, seed), again = hash_of(options, seed);
    if (!once.empty() && once == again) continue;
    ++differ;
    std::printf("seed %llu: events %s and %s\n", static_cast<unsigned long long>(seed),
                once.c_str(), again.c_str());
  }
  std::printf("%llu seeds x %u operations twice, %u differ\n",
              static_cast<unsigned long long>(options.seeds), options.operations, differ);
  return differ ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [](const char* name, uint64_t otherwise) {
    const char* words = std::getenv(name);
    return words && *words ? std::strtoull(words, nullptr, 0) : otherwise;
  };
  RunOptions run;
  run.program = argv[0];
  run.seeds = number("FIRN_SEEDS", 600);
  run.operations = static_cast<unsigned>(number("FIRN_OPERATIONS", 20'000));
  run.jobs = static_cast<unsigned>(number("FIRN_JOBS", 2));
  run.first_seed = number("FIRN_FIRST_SEED", 1);
  std::vector<uint64_t> numbers;
  bool same = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--hash") == 0) run.print_hash = true;
    else if (std::strcmp(argv[i], "--log") == 0) run.log_events = true;
    else if (std::strcmp(argv[i], "--here") == 0) run.here = true;
    else if (std::strcmp(argv[i], "--same") == 0) same = true;
    else if (std::strcmp(argv[i], "--no-shrink") == 0) run.shrink = false;
    else if (std::strncmp(argv[i], "--only=", 7) == 0)
      for (char* at = argv[i] + 6; *at; ) run.only.push_back(std::strtoull(at + 1, &at, 0));
    else numbers.push_back(std::strtoull(argv[i], nullptr, 0));
  }
  if (same) {
    run.seeds = std::min<uint64_t>(number("FIRN_SEEDS", 40), 200);
    run.operations = static_cast<unsigned>(number("FIRN_OPERATIONS", 4000));
    return run_same(run);
  }
  if (numbers.size() > 1) run.operations = static_cast<unsigned>(numbers[1]);
  if (numbers.empty()) return run_seeds(run);
  run.first_seed = numbers[0];
  return run_one(run);
}
