#include "tests/simulation/run.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <new>

#include <fmt/format.h>

#include "tests/simulation/options.h"
#include "tests/simulation/world.h"

namespace firn::sim {

namespace {

using Time = std::chrono::steady_clock;
double seconds_since(Time::time_point begin) {
  return std::chrono::duration<double>(Time::now() - begin).count();
}

template <class T>
T* shared() {
  void* at = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) std::abort();
  return new (at) T;
}

/// What a child writes to stderr, of which only the end is of interest.
class Said {
 public:
  Said() : file_(std::tmpfile()) {}
  ~Said() { std::fclose(file_); }
  void take_stderr() const { (void)::dup2(::fileno(file_), STDERR_FILENO); }
  void clear() const {
    (void)!::ftruncate(STDERR_FILENO, 0);
    (void)::lseek(STDERR_FILENO, 0, SEEK_SET);
  }
  std::string end() const {
    char words[4096];
    const off_t size = ::lseek(::fileno(file_), 0, SEEK_END);
    const off_t from = std::max<off_t>(0, size - static_cast<off_t>(sizeof words));
    const ssize_t got = ::pread(::fileno(file_), words, sizeof words, from);
    return got > 0 ? std::string(words, static_cast<size_t>(got)) : std::string();
  }

 private:
  std::FILE* file_;
};

/// From here on, of a processor; and twenty times that by the clock, where nothing moves at all.
void limit_time(unsigned seconds) {
  rusage used{};
  (void)::getrusage(RUSAGE_SELF, &used);
  const auto until = static_cast<rlim_t>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + seconds;
  const rlimit limit{until, RLIM_INFINITY};
  (void)::setrlimit(RLIMIT_CPU, &limit);
  ::alarm(20 * seconds);
}

void live(uint64_t seed, unsigned operations, Report& report, Words& words,
          const std::vector<bool>& skip, std::FILE* history, bool log_events = false) {
  words.seed = seed;
  const Options options = draw_options(seed, operations);
  World world(options, report, words, skip, history, log_events);
  world.run();
  ++report.seeds;
}

Outcome outcome_of(const Words& words, int status, const std::string& said) {
  Outcome outcome;
  outcome.operation = words.operation;
  outcome.hash = words.hash;
  outcome.failed = status != 0;
  if (words.oracle[0]) {
    outcome.oracle = words.oracle;
    outcome.text = words.text;
  } else if (outcome.failed) {
    outcome.oracle = oracle_of(said);
    const size_t line = said.size() > 1 ? said.rfind('\n', said.size() - 2) : std::string::npos;
    outcome.text = line == std::string::npos ? said : said.substr(line + 1);
    if (WIFSIGNALED(status)) outcome.text += fmt::format(" (signal {})", WTERMSIG(status));
  }
  return outcome;
}

std::string replay(const RunOptions& options, uint64_t seed) {
  const char* gpu = std::getenv("FIRN_TEST_GPU");
  const char* canary = std::getenv("FIRN_CANARY");
  return fmt::format("{}FIRN_TEST_GPU={} {} {} {}",
                     canary ? fmt::format("FIRN_CANARY={} ", canary) : std::string(),
                     gpu ? gpu : "", options.program, seed, options.operations);
}

void tell(const RunOptions& options, uint64_t seed, const Outcome& outcome) {
  std::printf("seed %llu failed at operation %llu: %s: %s\n  %s\n  replay: %s\n",
              static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(outcome.operation), outcome.oracle.c_str(),
              outcome.text.c_str(), draw_options(seed, options.operations).words().c_str(),
              replay(options, seed).c_str());
  if (!options.shrink) return;
  const std::vector<bool> skip = shrink(seed, options.operations, outcome, 30);
  size_t left = 0;
  for (size_t i = 0; i <= outcome.operation && i < skip.size(); ++i) left += !skip[i];
  std::printf("  shrunk to %zu operations:\n", left);
  std::fflush(stdout);
  (void)try_seed(seed, options.operations, skip, "/dev/stdout");
}

}  // namespace

std::string oracle_of(const std::string& said) {
  const std::pair<const char*, const char*> words[] = {
      {"is used by work that is still queued", "unmap_under_use"},
      {"software GPU:", "driver_rules"},
      {"changed while they were being written", "write_changed"},
      {"has no copy", "no_copy"},
      {"deadlock", "deadlock"},
      {"broken:", "invariant"}};
  const size_t last = said.size() > 1200 ? said.size() - 1200 : 0;
  for (const auto& [part, oracle] : words)
    if (said.find(part, last) != std::string::npos) return oracle;
  return "abort";
}

Outcome try_seed(uint64_t seed, unsigned operations, const std::vector<bool>& skip,
                 const std::string& history_to) {
  static Words* words = shared<Words>();
  static Report* report = shared<Report>();
  *words = Words();
  Said said;
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    said.take_stderr();
    limit_time(60);
    std::FILE* history = history_to.empty() ? nullptr : std::fopen(history_to.c_str(), "a");
    if (history) std::setvbuf(history, nullptr, _IOLBF, 4096);
    live(seed, operations, *report, *words, skip, history);
    ::_exit(0);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  return outcome_of(*words, status, said.end());
}

std::vector<bool> shrink(uint64_t seed, unsigned operations, const Outcome& outcome,
                         unsigned seconds) {
  const auto begin = Time::now();
  std::vector<bool> skip(operations, false);
  for (size_t i = outcome.operation + 1; i < operations; ++i) skip[i] = true;
  for (size_t step = std::max<size_t>(outcome.operation / 2, 1);; step /= 2) {
    for (size_t at = 0; at <= outcome.operation && seconds_since(begin) < seconds; at += step) {
      std::vector<bool> fewer = skip;
      bool any = false;
      for (size_t i = at; i < std::min<size_t>(at + step, outcome.operation + 1); ++i) {
        any |= !fewer[i];
        fewer[i] = true;
      }
      if (!any) continue;
      const Outcome now = try_seed(seed, operations, fewer);
      if (now.failed && now.oracle == outcome.oracle) skip = std::move(fewer);
    }
    if (step == 1 || seconds_since(begin) >= seconds) return skip;
  }
}

int run_one(const RunOptions& options) {
  const uint64_t seed = options.first_seed;
  std::vector<bool> skip(options.only.empty() ? 0 : options.operations, true);
  for (uint64_t number : options.only)
    if (number < skip.size()) skip[number] = false;
  if (options.here || options.log_events) {
    static Words words;
    static Report report;
    if (options.log_events) std::setvbuf(stdout, nullptr, _IOLBF, 4096);
    live(seed, options.operations, report, words, skip, options.log_events ? stdout : nullptr,
         options.log_events);
    std::printf("%llx\n", static_cast<unsigned long long>(words.hash));
    return 0;
  }
  const Outcome outcome = try_seed(seed, options.operations, skip);
  if (options.print_hash)
    std::printf("%llx\n", static_cast<unsigned long long>(outcome.hash));
  if (outcome.failed) tell(options, seed, outcome);
  return outcome.failed;
}

namespace {

// A worker ends after so many seeds, and another goes on: what engines of dead devices leave to the
// process's end adds up.
constexpr unsigned seeds_of_a_worker = 200;
constexpr int more_to_do = 77;

/// A worker takes seeds until there are none, or it had its share. Never returns.
[[noreturn]] void work(const RunOptions& options, Report& report, Words& words, const Said& said) {
  said.take_stderr();
  for (unsigned done = 0;; ++done) {
    if (done == seeds_of_a_worker) ::_exit(more_to_do);
    const uint64_t number = report.next_seed.fetch_add(1);
    if (number >= options.seeds) ::_exit(0);
    said.clear();
    words = Words();
    limit_time(120);
    live(options.first_seed + number, options.operations, report, words, {}, nullptr);
  }
}

int summary(const RunOptions& options, const Report& report, unsigned failures, double seconds) {
  uint64_t injected = 0;
  std::string by_kind;
  for (unsigned i = 0; i < fault_count; ++i) {
    const uint64_t times = report.faults[i];
    injected += times;
    if (times)
      by_kind += fmt::format("{}{} {}", by_kind.empty() ? "" : ", ", times, fault_names[i]);
  }
  std::string missing;
  for (unsigned i = 0; i < probe_count; ++i)
    if (report.probe_seeds[i] == 0 &&
        (i < first_recipe_probe || options.first_seed >= seeds_with_recipes))
      missing += fmt::format(" {}", probe_names[i]);
  std::printf("probes (seeds that met each):");
  for (unsigned i = 0; i < probe_count; ++i)
    std::printf(" %s %llu", probe_names[i],
                static_cast<unsigned long long>(report.probe_seeds[i].load()));
  std::printf("\n%llu blocks left the device, %llu came back, %llu MiB went to the store and %llu "
              "came from there",
              static_cast<unsigned long long>(report.evictions.load()),
              static_cast<unsigned long long>(report.faults_served.load()),
              static_cast<unsigned long long>(report.written_bytes >> 20),
              static_cast<unsigned long long>(report.read_bytes >> 20));
  std::printf("\n%llu seeds x %u operations in %.0f s (%llu in all), %llu faults injected (%s), "
              "%llu blocks lost as they had to be, %u wrong\n",
              static_cast<unsigned long long>(report.seeds.load()), options.operations, seconds,
              static_cast<unsigned long long>(report.operations.load()),
              static_cast<unsigned long long>(injected), by_kind.c_str(),
              static_cast<unsigned long long>(report.lost.load()), failures);
  if (failures) return 1;
  // (A few seeds meet not everything.)
  if (options.seeds < 200 || missing.empty()) return 0;
  std::printf("met by no seed:%s\n", missing.c_str());
  return 1;
}

}  // namespace

int run_seeds(const RunOptions& options) {
  Report& report = *shared<Report>();
  std::vector<Words*> words(options.jobs);
  std::vector<Said> said(options.jobs);
  std::map<pid_t, unsigned> workers;
  const auto begin = Time::now();
  const auto start = [&](unsigned i) {
    std::fflush(stdout);
    const pid_t child = ::fork();
    if (child == 0) work(options, report, *words[i], said[i]);
    workers[child] = i;
  };
  for (unsigned i = 0; i < options.jobs; ++i) {
    words[i] = shared<Words>();
    start(i);
  }
  unsigned failures = 0;
  while (!workers.empty()) {
    int status = 0;
    const pid_t child = ::wait(&status);
    if (child < 0) continue;
    const unsigned i = workers.at(child);
    workers.erase(child);
    if (status == 0) continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == more_to_do) {
      start(i);
      continue;
    }
    tell(options, words[i]->seed, outcome_of(*words[i], status, said[i].end()));
    if (++failures < 3) start(i);
    else report.next_seed = options.seeds;
  }
  return summary(options, report, failures, seconds_since(begin));
}

}  // namespace firn::sim
