// Faults put into the engine on purpose (firn/canary.h), each of which the simulation's own seeds
// have to find within 20 s of a processor's time, by the oracle that is meant to.
//
//   canaries_test            all of them
//   canaries_test NUMBER [SECONDS]   that one, for so long
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tests/simulation/options.h"
#include "tests/simulation/run.h"

using namespace firn::sim;

namespace {

struct Canary {
  int number;
  const char* what;
  std::vector<std::string_view> oracles;
  uint64_t first_seed = 1;
};
constexpr uint64_t with_recipes = seeds_with_recipes + 1;

const Canary canaries[] = {
    {1, "no event lies behind a stretch of work", {"unmap_under_use", "wrong_tag", "places"}},
    {3, "an error of a query is taken for the end of work",
     {"unmap_under_use", "wrong_tag", "places"}},
    {4, "a slot is given back when its write begins", {"invariant", "places"}},
    {5, "host memory is given back before its write is over", {"places", "invariant", "no_copy"}},
    // (In seed 6 the sums of the store's bytes find it first.)
    {7, "a read of an older version is taken for one of this", {"invariant", "places"}, 7},
    // (A version is never set back, so that generations alone may be left out without harm.)
    {8, "a read for a block that is gone is taken for its successor's",
     {"invariant", "places", "wrong_tag", "abort"}},  // abort: a piece that its successor lacks
    {9, "uses on other streams are forgotten", {"unmap_under_use", "wrong_tag", "places"}},
    {10, "a copy out goes on the stream of copies in",
     {"unmap_under_use", "places", "wrong_tag", "early_use", "write_changed"}},
    {14, "the last piece is cut to whole pages", {"wrong_tag", "places", "early_use"}},
    {17, "a frame is given back twice", {"driver_rules", "invariant", "wrong_tag", "places"}},
    {18, "a small frame is not counted", {"budget", "invariant"}},
    {19, "frames are unmapped before their copy out is over", {"unmap_under_use", "places"}},
    {22, "host memory of a read that is withdrawn is used before the read is over",
     {"places", "wrong_tag", "invariant", "write_changed"}},
    // Where the driver takes the call, a kernel runs before its bytes are there.
    // (Or the default stream of the other device waits for a copy in place of this one's.)
    {25, "the context of another device is current", {"driver", "early_use"}},
    {27, "nobody waits for a copy in", {"early_use", "wrong_tag"}},
    {28, "a failed write is taken for a good one", {"places", "invariant"}},
    {29, "a copy out waits for no use", {"places", "wrong_tag"}},
    {30, "a write does not end a version",
     {"places", "wrong_tag", "invariant", "unmap_under_use"}},
    {31, "a failed read is taken for a good one", {"places", "wrong_tag"}},
    {32, "a block is lost at its first failed read", {"lost"}},
    // (Few seeds end while a request is under way: one in 60 s.)
    {35, "the end waits for no request of the store's", {"close", "invariant"}, 120},
    {36, "slots are never given back", {"leak", "close"}},
    {38, "what was told to stay leaves", {"stopped"}},
    {39, "memory is refused where a block could have left", {"out_of_memory"}},
    {40, "the last answers of the store are not looked at", {"time", "liveness", "quiet"}},
    {41, "an input is written, and what was made from it is made again from that",
     {"wrong_tag", "places", "invariant"}, with_recipes},
    {42, "a recipe outlives its input",
     {"invariant", "wrong_tag", "places", "kernel_unmapped", "early_use", "twice"}, with_recipes},
    {43, "an operator is run again by two threads at once", {"twice"}, with_recipes},
    {44, "a write does not wait for reads that the program does not know of",
     {"wrong_tag"}, with_recipes},
    {45, "a block is dropped while it is in use", {"unmap_under_use", "wrong_tag", "places"},
     with_recipes},
    {46, "other streams do not wait for work that was run again",
     {"wrong_tag", "early_use", "places"}, with_recipes},
    {47, "what is written in host memory keeps its copy in the store", {"places", "wrong_tag"}},
    {48, "who writes in host memory does not wait for writes to the store",
     {"write_changed", "places", "wrong_tag"}},
};

double seconds_most = 20;
constexpr unsigned operations = 20'000;

/// Of the seeds' processes: a busy machine finds no less.
double processor_seconds() {
  rusage used{};
  (void)::getrusage(RUSAGE_CHILDREN, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

bool find(const Canary& canary) {
  ::setenv("FIRN_CANARY", std::to_string(canary.number).c_str(), 1);
  const double begin = processor_seconds();
  const auto seconds = [&] { return processor_seconds() - begin; };
  for (uint64_t seed = canary.first_seed; seconds() < seconds_most; ++seed) {
    const Outcome outcome = try_seed(seed, operations, {});
    if (!outcome.failed) continue;
    bool meant = false;
    for (std::string_view oracle : canary.oracles) meant |= oracle == outcome.oracle;
    std::printf("%2d %s: %s by %s in seed %llu after %.1f s%s%s\n", canary.number, canary.what,
                meant ? "found" : "FOUND BY ANOTHER ORACLE", outcome.oracle.c_str(),
                static_cast<unsigned long long>(seed), seconds(), meant ? "" : ": ",
                meant ? "" : outcome.text.c_str());
    return meant;
  }
  std::printf("%2d %s: NOT FOUND in %.0f s\n", canary.number, canary.what, seconds_most);
  return false;
}

/// Without any of them the seeds that find most have nothing to say.
bool quiet_without() {
  ::unsetenv("FIRN_CANARY");
  for (const uint64_t seed : {1ul, 2ul, 3ul, 4ul, with_recipes, with_recipes + 1}) {
    const Outcome outcome = try_seed(seed, operations, {});
    if (!outcome.failed) continue;
    std::printf("without a canary: seed %llu fails by %s: %s\n",
                static_cast<unsigned long long>(seed), outcome.oracle.c_str(),
                outcome.text.c_str());
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const int only = argc > 1 ? std::atoi(argv[1]) : 0;
  if (argc > 2) seconds_most = std::atof(argv[2]);
  unsigned found = 0, all = 0;
  if (!quiet_without()) return 1;
  for (const Canary& canary : canaries) {
    if (only && only != canary.number) continue;
    ++all;
    found += find(canary);
    std::fflush(stdout);
  }
  std::printf("%u of %u canaries found, each by an oracle that is meant to\n", found, all);
  return found == all ? 0 : 1;
}
