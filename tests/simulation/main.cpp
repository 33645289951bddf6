// Seeded simulations of the engine, in worker processes.
//
//   tags_test                     FIRN_SEEDS seeds (210) of FIRN_OPERATIONS each, FIRN_JOBS workers
//   tags_test --recipes           so many (105) whose operators can be run again
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

#include "tests/simulation/options.h"
#include "tests/simulation/run.h"

using namespace firn::sim;

namespace {

struct Told {
  std::string hash;     // of the seed's events; empty: it failed
  std::string address;  // that the system hands out
};

/// What a new process says, in which so much is mapped already.
Told told_by(const RunOptions& options, uint64_t seed, unsigned mapped_mib) {
  const std::string command = options.program + " " + std::to_string(seed) + " " +
                              std::to_string(options.operations) + " --hash --no-shrink --mapped=" +
                              std::to_string(mapped_mib);
  std::FILE* answer = ::popen(command.c_str(), "r");
  if (!answer) return {};
  char address[32] = {}, hash[32] = {};
  const bool read = std::fscanf(answer, "%31s %31s", address, hash) == 2;
  return ::pclose(answer) == 0 && read ? Told{hash, address} : Told{};
}

/// Whatever comes behind it has other addresses, also where the system spreads nothing.
void map_first(size_t mib) {
  constexpr size_t bytes = 1u << 20;
  const void* at = ::mmap(nullptr, mib * bytes + 4096, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  std::printf("%p\n", at);
}

int run_same(const RunOptions& options) {
  unsigned differ = 0;
  for (uint64_t seed = options.first_seed; seed < options.first_seed + options.seeds; ++seed) {
    const Told once = told_by(options, seed, 3), again = told_by(options, seed, 1026);
    if (!once.hash.empty() && once.hash == again.hash && once.address != again.address) continue;
    ++differ;
    std::printf("seed %llu: events %s and %s, with memory at %s and %s\n",
                static_cast<unsigned long long>(seed), once.hash.c_str(), again.hash.c_str(),
                once.address.c_str(), again.address.c_str());
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
  bool recipes = false;
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
    else if (std::strcmp(argv[i], "--recipes") == 0) recipes = true;
    else if (std::strncmp(argv[i], "--mapped=", 9) == 0)
      map_first(std::strtoull(argv[i] + 9, nullptr, 0));
    else if (std::strcmp(argv[i], "--no-shrink") == 0) run.shrink = false;
    else if (std::strncmp(argv[i], "--only=", 7) == 0)
      for (char* at = argv[i] + 6; *at; ) run.only.push_back(std::strtoull(at + 1, &at, 0));
    else numbers.push_back(std::strtoull(argv[i], nullptr, 0));
  }
  run.seeds = number("FIRN_SEEDS", recipes ? 105 : 210);
  if (recipes) run.first_seed += seeds_with_recipes;
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
