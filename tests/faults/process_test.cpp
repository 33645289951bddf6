// The nth call of each name (of a system call, or operator new) that Firn makes fails in a process
// that uses its C API with real spill files: opening, a job that spills and reads back, the end.
// Once, with all of its kind from then on, or with all of its name. Each call is answered, right or
// with a status; no byte is wrong; once calls no longer fail all is there; the process ends by
// itself, holds no more then than one without a failure, and leaves no file.
//
//   process_faults_test                       all of a sample; each n with FIRN_TEST_LENGTH=long
//   process_faults_test STORE NAME WHEN N     one run: io_uring fstat once 17
//
// (Stores: io_uring, threads, and encrypted, which is io_uring with firn_encrypt:1. The sample: of
// each name the first, second and last call of the job and of the end, then so many at equal
// distances that the whole is `call_runs_most`; each 31st operator new, each third of the end.)
#include <execinfo.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>

#include <fmt/format.h>

#include "tests/faults/cases.h"
#include "tests/faults/interpose.h"
#include "tests/faults/process_held.h"
#include "tests/faults/process_program.h"
#include "tests/faults/process_report.h"

namespace firn::faults {
namespace {

bool ring_is_there() {
  alignas(8) char parameters[256] = {};
  const int ring = static_cast<int>(::syscall(SYS_io_uring_setup, 4, parameters));
  if (ring >= 0) ::close(ring);
  return ring >= 0;
}

/// The process of a case. Ends by exit(), as programs do.
[[noreturn]] void live(const Case& of, const std::string& folder) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setenv("XDG_RUNTIME_DIR", (folder + "/run").c_str(), 1);
  std::string conf = fmt::format(
      "firn_budget:16MiB,firn_host:16MiB,firn_watch:0,firn_test_allow_tmpfs:1,firn_io_patience:0s,"
      "firn_store:{},firn_encrypt:{},firn_dir:{}/spill,firn_driver:{}",
      of.store == 1 ? "threads" : "automatic", of.store == 2 ? 1 : 0, folder,
      std::getenv("FIRN_TEST_GPU"));
  if (kind_of(of.name) == Kind::system_call) conf += ",firn_stats:" + folder + "/stats";  // JSON
  (void)::signal(SIGABRT, [](int) {  // whose it is
    void* stack[40];
    const Uncounted quiet;
    ::backtrace_symbols_fd(stack, ::backtrace(stack, 40), STDERR_FILENO);
    (void)::signal(SIGABRT, SIG_DFL);
  });
  report->ring = ring_is_there();
  report->trapped = begin_interposing(report->failed, sizeof report->failed);
  const bool in_the_end = of.n > usual[of.store].job[of.name];
  (void)Program::gpu();
  const std::multiset<std::string> before = held_now(folder);
  Program program(conf, kind_of(of.name) == Kind::allocation, of.n == 0);
  if (of.n && !in_the_end) arm(of.name, of.n, of.when);
  program.job();
  disarm();
  report->met = failed() > 0;
  for (size_t i = 0; i < names(); ++i) report->job[i] = static_cast<uint32_t>(calls(i));
  if (of.n == 0 && report->errors) wrong(std::string("without a failure: ") + report->first);
  if (of.n == 0 && kind_of(of.name) == Kind::system_call && !program.viewed())
    wrong("without a failure no viewer is answered");
  if (of.n) program.recover();
  if (report->errors) report->lost |= program.has_lost();
  if (in_the_end) arm(of.name, of.n - usual[of.store].job[of.name], of.when);
  program.end();
  std::string more;
  for (int i = 0; i < 200; ++i) {  // two seconds: threads have left Firn and are yet to end
    const Uncounted quiet;
    std::multiset<std::string> after = held_now(folder);
    for (const std::string& each : before)
      if (const auto at = after.find(each); at != after.end()) after.erase(at);
    std::string held;
    for (const std::string& each : after) held += each + "\n";
    std::snprintf(report->held, sizeof report->held, "%s", held.c_str());
    more = of.n ? held_too_much() : still_ending(after) ? "\n  a service's thread" : "";
    if (more.empty()) break;
    ::usleep(10'000);
  }
  if (!more.empty()) wrong("after its end it holds more than without a failure:" + more);
  std::atexit([] {
    for (size_t i = 0; i < names(); ++i) {
      report->end[i] = static_cast<uint32_t>(calls(i)) - report->job[i];
      report->failures[i] = static_cast<uint32_t>(failed(i));
    }
    report->met |= failed() > 0;
  });
  std::exit(report->lost ? 3 : 0);
}

End run(const Case& of) {
  char folder[] = "/tmp/firn-faults-XXXXXX";
  if (!::mkdtemp(folder)) wrong("mkdtemp");
  for (const char* each : {"/spill", "/run"})
    std::filesystem::create_directory(std::string(folder) + each);
  const std::string viewers = std::string(folder) + "/run/firn";
  std::filesystem::create_directory(viewers);
  std::filesystem::permissions(viewers, std::filesystem::perms::owner_all);
  std::ofstream(viewers + "/2000000000.sock") << "of a process that is dead";
  *report = {};
  const pid_t child = ::fork();
  if (child == 0) live(of, folder);
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) wrong("no process");
  std::string left;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(folder) + "/spill"))
    left += " " + entry.path().filename().string();
  std::filesystem::remove_all(folder);
  if (WIFSIGNALED(status))
    wrong(fmt::format("the process ends by signal {}; the first call that failed: {}; errors: {}",
                      WTERMSIG(status), report->failed, report->first));
  if (WEXITSTATUS(status) == 1 && !report->lost) ::_exit(1);  // wrong() has said it
  if (WEXITSTATUS(status) > 3) wrong(fmt::format("exit status {}", WEXITSTATUS(status)));
  if (!left.empty()) wrong("files are left:" + left);
  if (report->slowest_cpu_s > cpu_s_most)
    wrong(fmt::format("a call took {:.1f} s of a processor", report->slowest_cpu_s));
  if (report->slowest_s > s_most)
    wrong(fmt::format("{} took {:.1f} s", report->slowest, report->slowest_s));
  if (!report->met) return End::none;
  return report->errors ? End::error : End::right;
}

/// Without failures: how many calls there are. (Allocations without the statistics' file.)
void count_usual() {
  const size_t allocates = name_called("operator_new");
  for (unsigned store = 0; store < std::size(stores); ++store) {
    (void)run({store, allocates, When::once, 0});
    const Report of_allocations = *report;
    (void)run({store, name_called("open"), When::once, 0});
    usual[store] = *report;
    usual[store].job[allocates] = of_allocations.job[allocates];
    usual[store].end[allocates] = of_allocations.end[allocates];
  }
}

std::string words_of(const Case& of) {
  return fmt::format("{} {} {} {}", stores[of.store], name_of(of.name),
                     whens[static_cast<size_t>(of.when)], of.n);
}

/// Of `calls`, of which so many are the job's: the first, second and last of the job and of the
/// end, and `more` between them at equal distances.
std::set<uint64_t> taken(uint64_t job, uint64_t calls, uint64_t more) {
  std::set<uint64_t> all;
  for (const auto& [begin, end] : {std::pair{uint64_t{0}, job}, std::pair{job, calls}})
    for (const uint64_t n : {begin + 1, begin + 2, end})
      if (n > begin && n <= end) all.insert(n);
  if (more >= calls) more = calls;
  for (uint64_t i = 1; i <= more; ++i) all.insert(1 + (calls - 1) * i / more);
  return all;
}

std::vector<Case> cases_with(uint64_t more) {
  std::vector<Case> cases;
  for (size_t name = 0; name < names(); ++name)
    for (unsigned store = 0; store < std::size(stores); ++store) {
      const uint64_t job = usual[store].job[name], calls = job + usual[store].end[name];
      if (calls == 0) continue;
      const bool allocates = kind_of(name) == Kind::allocation;
      std::set<uint64_t> some = taken(job, calls, allocates ? 0 : more);
      if (length() == Length::quick) {  // the first call, with one of the stores that make it
        some.clear();
        unsigned with = static_cast<unsigned>(name) % std::size(stores);
        while (usual[with].job[name] + usual[with].end[name] == 0) ++with %= std::size(stores);
        if (with == store) some.insert(1);
        if (allocates)
          for (uint64_t n = 1; n <= calls; n += 248) some.insert(n);
      } else if (allocates) {
        for (uint64_t n = 1; n <= calls; ++n)
          if (n % 31 == 1 || (n > job && n % 3 == 0)) some.insert(n);
      }
      if (length() == Length::long_)
        for (uint64_t n = 1; n <= calls; ++n) some.insert(n);
      for (const When when : {When::once, When::from})
        for (const uint64_t n : some) cases.push_back({store, name, when, n});
      if (!allocates && length() != Length::quick && calls > 1 &&
          (length() == Length::long_ || store == name % std::size(stores)))
        cases.push_back({store, name, When::alike, 1});
    }
  return cases;
}

/// With as many between a name's first and last calls as `call_runs_most` has room for.
std::vector<Case> all_cases() {
  const auto call_runs = [](const std::vector<Case>& cases) {
    return static_cast<uint64_t>(std::count_if(cases.begin(), cases.end(), [](const Case& of) {
      return kind_of(of.name) == Kind::system_call;
    }));
  };
  uint64_t more = 0;
  std::vector<Case> cases = cases_with(0);
  if (length() != Length::normal) return cases;
  for (std::vector<Case> next; more < 1000; cases = std::move(next)) {
    next = cases_with(++more);
    if (call_runs(next) > call_runs_most) break;
  }
  return cases;
}

/// Names that cannot fail in this scenario, and where they do; none of them may be met here.
struct Elsewhere {
  const char *name, *reason;
};
constexpr Elsewhere elsewhere[] = {
    {"fdopen", "only of a process that aborts"},
    {"memfd_create", "exports are not the C API's: exported_memory"},
    {"posix_fadvise", "of a slot whose sum is wrong: store_faults"},
    {"statfs", "doctor's and run's: command/test_doctor.py"},
    {"access", "where descriptors were closed by others: descriptor"},
    {"remove", "a trace's parts: engine_trace"},
    {"poll", "who does not read stderr, metrics at a port: said, metrics_output"},
    {"pipe2", "host memory at device addresses: host_nodes"},
    {"posix_spawn", "host memory at device addresses: host_nodes"},
    {"eventfd", "libfirn does not import it"},
};
const char* reason_of(const char* name) {
  for (const Elsewhere& each : elsewhere)
    if (std::strcmp(each.name, name) == 0) return each.reason;
  return nullptr;
}

struct Fate {
  uint64_t met[std::size(stores)] = {};
  size_t runs = 0, ends[4] = {};
};

// AddressSanitizer's own stand-ins are in front of some: fopen, read, pthread_create.
#ifdef __SANITIZE_ADDRESS__
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

/// False: a name never failed, though it could have.
bool print_names(const std::vector<Fate>& fates, const uint64_t* failures, bool whole) {
  bool passed = true;
  std::printf("%-18s %9s %9s %9s %6s %9s %6s %6s %8s\n", "what fails", "io_uring", "threads",
              "encrypted", "runs", "failed", "right", "error", "not met");
  for (size_t name = 0; name < fates.size(); ++name) {
    const Fate& of = fates[name];
    const char* reason = reason_of(name_of(name));
    const bool rings = std::strstr(name_of(name), "io_uring") != nullptr;
    if (rings && (!usual[0].ring || !usual[0].trapped))
      reason = usual[0].ring ? "SKIPPED: seccomp is refused here" : "SKIPPED: no io_uring here";
    std::printf("%-18s %9llu %9llu %9llu %6zu %9llu %6zu %6zu %8zu %s\n", name_of(name),
                static_cast<unsigned long long>(of.met[0]),
                static_cast<unsigned long long>(of.met[1]),
                static_cast<unsigned long long>(of.met[2]), of.runs,
                static_cast<unsigned long long>(failures[name]),
                of.ends[static_cast<size_t>(End::right)],
                of.ends[static_cast<size_t>(End::error)],
                of.ends[static_cast<size_t>(End::none)], reason ? reason : "");
    const size_t fell = of.ends[static_cast<size_t>(End::right)] +
                        of.ends[static_cast<size_t>(End::error)];
    if (whole && !sanitized && !reason && fell == 0) {
      passed = false;
      std::printf("WRONG: %s was never the call that fails\n", name_of(name));
    }
    if (reason && !rings && of.met[0] + of.met[1] + of.met[2] > 0) {
      passed = false;
      std::printf("WRONG: %s is met here, and said to be elsewhere\n", name_of(name));
    }
  }
  return passed;
}

int run_all(const std::string& program) {
  bool passed = true;
  count_usual();
  if (const std::string unknown = unknown_imports(); !unknown.empty()) {
    std::printf("WRONG: libfirn imports what is neither failed nor known (imports.cpp):%s\n",
                unknown.c_str());
    passed = false;
  }
  std::vector<Case> cases = all_cases();
  const char* only = std::getenv("FIRN_FAULTS_NAME");
  const char* kind = std::getenv("FIRN_FAULTS_KIND");  // calls, allocations
  std::erase_if(cases, [&](const Case& of) {
    const char* its = kind_of(of.name) == Kind::allocation ? "allocations" : "calls";
    return (only && std::strcmp(only, name_of(of.name)) != 0) ||
           (kind && std::strcmp(kind, its) != 0);
  });
  auto* failures = static_cast<uint64_t*>(shared_memory(names_most * sizeof(uint64_t)));
  auto* slowest = static_cast<Report*>(shared_memory(cases.size() * sizeof(Report)));
  CaseRuns runs;
  runs.program = program;
  runs.seconds_most = 60;
  runs.words = [&](size_t i) { return words_of(cases[i]); };
  runs.run = [&](size_t i) {
    report = &slowest[i];
    const End end = run(cases[i]);
    for (size_t name = 0; name < names(); ++name)
      std::atomic_ref(failures[name]) += report->failures[name];
    return end;
  };
  const std::vector<End> ends = run_cases(runs, cases.size(), passed);
  std::vector<Fate> fates(names());
  for (size_t name = 0; name < names(); ++name)
    for (size_t store = 0; store < std::size(stores); ++store)
      fates[name].met[store] = usual[store].job[name] + usual[store].end[name];
  std::map<std::tuple<Kind, unsigned, When>, Fate> sums;
  size_t worst = 0, busiest = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& of = cases[i];
    for (Fate* each : {&fates[of.name], &sums[{kind_of(of.name), of.store, of.when}]}) {
      ++each->runs;
      ++each->ends[static_cast<size_t>(ends[i])];
    }
    if (slowest[i].slowest_s > slowest[worst].slowest_s) worst = i;
    if (slowest[i].slowest_cpu_s > slowest[busiest].slowest_cpu_s) busiest = i;
  }
  std::printf("%-10s %-12s %-5s %6s %8s %8s %8s\n", "store", "what fails", "when", "runs", "right",
              "error", "not met");
  for (const auto& [key, of] : sums)
    std::printf("%-10s %-12s %-5s %6zu %8zu %8zu %8zu\n", stores[std::get<1>(key)],
                std::get<0>(key) == Kind::allocation ? "allocations" : "calls",
                whens[static_cast<size_t>(std::get<2>(key))], of.runs,
                of.ends[static_cast<size_t>(End::right)],
                of.ends[static_cast<size_t>(End::error)],
                of.ends[static_cast<size_t>(End::none)]);
  if (!print_names(fates, failures, !only && !kind && passed)) passed = false;
  if (!cases.empty())
    std::printf("%zu runs; the slowest call: %s, %.2f s (%s); the most processor time: %.2f s "
                "(%s)\n",
                cases.size(), slowest[worst].slowest, slowest[worst].slowest_s,
                words_of(cases[worst]).c_str(), slowest[busiest].slowest_cpu_s,
                words_of(cases[busiest]).c_str());
  if (!passed) return 1;
  if (usual[0].trapped) return 0;
  std::printf("SKIPPED: seccomp is refused here: no call of io_uring's has failed\n");
  return 77;
}

int run_one(char** words) {
  Case of{};
  while (of.store + 1 < std::size(stores) && std::strcmp(words[0], stores[of.store]) != 0)
    ++of.store;
  of.name = name_called(words[1]);
  for (unsigned i = 0; i < std::size(whens); ++i)
    if (std::strcmp(words[2], whens[i]) == 0) of.when = static_cast<When>(i);
  of.n = std::strtoull(words[3], nullptr, 10);
  if (of.name == names()) {
    std::fprintf(stderr, "%s is not known\n", words[1]);
    return 2;
  }
  count_usual();
  if (!report->trapped) std::printf("seccomp is refused here: io_uring's calls do not fail\n");
  const End end = run(of);
  std::printf("%s: %s; %s; %s; slowest %s %.2f s; beyond what it held before:\n%s",
              words_of(of).c_str(),
              end == End::right ? "right" : end == End::error ? "an error" : "not met",
              report->failed, report->first, report->slowest, report->slowest_s, report->held);
  return 0;
}

}  // namespace
}  // namespace firn::faults

int main(int argc, char** argv) {
  using namespace firn::faults;
  report = static_cast<Report*>(shared_memory(sizeof *report));
  return argc > 4 ? run_one(argv + 1) : run_all(argv[0]);
}
