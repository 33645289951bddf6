// Every nth system call of Firn's fails, or every nth operator new, once or from then on, in a
// process that uses its C API with real spill files: opening, a job that spills and reads back, the
// end. Each call is answered, right or with a status; no byte is wrong; once calls no longer fail
// all is there; the process ends by itself, and leaves no file.
//
//   process_faults_test                       all of a sample; each n with FIRN_TEST_LENGTH=long
//   process_faults_test STORE KIND WHEN N     one run: io_uring calls once 17
//
// (Stores: io_uring, threads, and encrypted, which is io_uring with firn_encrypt:1.)
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "firn/cuda_abi.h"
#include "firn/firn.h"
#include "firn/software_gpu.h"
#include "tests/faults/cases.h"
#include "tests/faults/interpose.h"

namespace firn::faults {
namespace {

constexpr const char* stores[] = {"io_uring", "threads", "encrypted"};
constexpr const char* kinds[] = {"calls", "allocations"};
constexpr const char* whens[] = {"once", "from"};

struct Case {
  unsigned store;
  Kind kind;
  bool lasting;
  uint64_t n;
};

/// What the process of a case tells its worker.
struct Report {
  uint64_t job[2], end[2];  // calls of each kind
  unsigned errors;
  bool lost, met;
  char first[200], failed[40];
  double slowest_s;
  char slowest[40];
};
Report* report = nullptr;
std::map<std::pair<unsigned, Kind>, Report> usual;

std::atomic<uint64_t> wrong_words{0};
void fill_kernel(void** params, const unsigned*, const unsigned*) {
  auto* words = *static_cast<uint64_t**>(params[0]);
  const uint64_t count = *static_cast<uint64_t*>(params[1]);
  const uint64_t seed = *static_cast<uint64_t*>(params[2]);
  for (uint64_t i = 0; i < count; i += 64) words[i] = seed * 0x9E3779B97F4A7C15u + i;
}
void verify_kernel(void** params, const unsigned*, const unsigned*) {
  auto* words = *static_cast<uint64_t**>(params[0]);
  const uint64_t count = *static_cast<uint64_t*>(params[1]);
  const uint64_t seed = *static_cast<uint64_t*>(params[2]);
  for (uint64_t i = 0; i < count; i += 64)
    if (words[i] != seed * 0x9E3779B97F4A7C15u + i) ++wrong_words;
}
const unsigned layout[][2] = {{0, 8}, {8, 8}, {16, 8}, {0, 0}};

struct Gpu {
  decltype(&firnGpuKernelCreate) kernel_create;
  CUresult (*init)(unsigned);
  CUresult (*retain)(CUcontext*, CUdevice);
  CUresult (*set_current)(CUcontext);
  CUresult (*synchronize)();
  CUresult (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     CUstream, void**, void**);
  void *fill = nullptr, *verify = nullptr;

  Gpu() {
    void* handle = ::dlopen(std::getenv("FIRN_TEST_GPU"), RTLD_NOW);
    if (!handle) wrong("FIRN_TEST_GPU must name the software GPU's library");
    const auto get = [&](auto& into, const char* name) {
      into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(::dlsym(handle, name));
      if (!into) wrong(std::string(name) + " is missing");
    };
    get(kernel_create, "firnGpuKernelCreate");
    get(init, "cuInit"), get(retain, "cuDevicePrimaryCtxRetain");
    get(set_current, "cuCtxSetCurrent"), get(synchronize, "cuCtxSynchronize");
    get(launch, "cuLaunchKernel");
    CUcontext context = nullptr;
    if (init(0) != CUDA_SUCCESS || retain(&context, 0) != CUDA_SUCCESS ||
        set_current(context) != CUDA_SUCCESS ||
        kernel_create("fill", fill_kernel, layout, &fill) != 0 ||
        kernel_create("verify", verify_kernel, layout, &verify) != 0)
      wrong("the software GPU");
  }
  void run(void* kernel, void* block, size_t bytes, uint64_t seed) const {
    uint64_t count = bytes / 8;
    void* params[] = {&block, &count, &seed};
    if (launch(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr) != CUDA_SUCCESS)
      wrong("a launch");
  }
};

struct Block {
  void* address = nullptr;
  uint64_t seed = 0;  // 0: not written
  bool lost = false;
};

/// A job over the C API. Statuses other than FIRN_OK are errors, each with words.
class Program {
 public:
  Program(const std::string& conf, bool allocations) : conf_(conf), allocations_(allocations) {}

  bool open() { return does("firn_init", [&] { return firn_init(conf_.c_str()); }); }

  void job() {
    if (!open()) return;
    for (int i = 0; i < 9; ++i) {
      if (make()) (void)write(blocks_.back(), 1 + static_cast<uint64_t>(i));
      if (i == 4 && !blocks_.empty()) cold(blocks_[0]);
    }
    for (Block& block : blocks_) read(block);
    if (blocks_.size() > 3) {
      Block& block = blocks_[2];
      (void)does("firn_prefetch", [&] { return firn_prefetch(block.address, bytes, nullptr); });
      if (does("firn_pin", [&] { return firn_pin(block.address); }))
        (void)does("firn_unpin", [&] { return firn_unpin(block.address); });
      (void)write(blocks_[1], 77);
      drop(0);
    }
    stats();
    for (Block& block : blocks_) read(block);
  }

  /// Calls no longer fail.
  void recover() {
    const unsigned before = report->errors;
    // (A directory that could not be written rests, for a second or more.)
    const auto must = [&](const char* what, auto&& call) {
      for (int i = 0; i < 150; ++i) {
        if (call() || last_lost_ || ended()) return;
        ::usleep(100'000);
      }
      wrong(fmt::format("calls no longer fail, and {} does: {} ({} errors before; the first call "
                        "that failed: {})",
                        what, last_, before, first_failed()));
    };
    must("firn_init", [&] { return opened_ || open(); });
    must("an allocation", [&] { return make(); });
    if (!blocks_.empty()) must("a write", [&] { return write(blocks_.back(), 99); });
    for (Block& block : blocks_) must("a read", [&] { return read(block); });
    stats();
    while (!blocks_.empty()) drop(blocks_.size() - 1);
    report->errors = before;
  }

  void end() {
    timed("firn_shutdown", [] { firn_shutdown(); return FIRN_OK; });
    check();
  }

  /// A read that failed while nobody waited for it, or before the engine ended, was told to no touch.
  bool has_lost() {
    static char text[1 << 16];
    const Uncounted quiet;
    (void)firn_stats(text, sizeof text);
    const char* const count = std::strstr(text, "\"lost_blocks\":");
    return count && std::atoi(count + std::strlen("\"lost_blocks\":")) > 0;
  }

 private:
  static constexpr size_t bytes = 4u << 20;

  template <class Call>
  int timed(const char* what, Call&& call) {
    using Time = std::chrono::steady_clock;
    const auto begin = Time::now();
    const int status = call();
    const double seconds = std::chrono::duration<double>(Time::now() - begin).count();
    if (seconds > report->slowest_s) {
      report->slowest_s = seconds;
      std::snprintf(report->slowest, sizeof report->slowest, "%s", what);
    }
    return status;
  }
  template <class Call>
  bool does(const char* what, Call&& call) {
    const int status = timed(what, call);
    if (status == FIRN_OK) {
      if (std::strcmp(what, "firn_init") == 0) opened_ = true;
      return true;
    }
    last_ = fmt::format("{}: status {}: {}", what, status, firn_error());
    last_lost_ = status == FIRN_LOST;
    report->lost |= last_lost_;
    if (report->errors++ == 0)
      std::snprintf(report->first, sizeof report->first, "%s", last_.c_str());
    if (status < 0 || status > FIRN_NOT_SUPPORTED + 8) wrong(last_);
    return false;
  }
  /// The engine has ended for want of memory in the middle of something: so it stays.
  bool ended() const { return last_.find("in the middle of moving blocks") != std::string::npos; }
  void check() {
    if (const uint64_t count = wrong_words)
      wrong(fmt::format("{} words are wrong; the first call that failed: {}", count,
                        first_failed()));
  }
  bool make() {
    Block block;
    if (!does("firn_malloc", [&] { return firn_malloc(&block.address, bytes, 0, nullptr); }))
      return false;
    blocks_.push_back(block);
    return true;
  }
  bool touch(Block& block, int access) {
    const bool done = does("firn_touch", [&] {
      return firn_touch(&block.address, &access, 1, nullptr);
    });
    block.lost |= !done && last_lost_;
    return done;
  }
  bool write(Block& block, uint64_t seed) {
    if (block.lost || !touch(block, FIRN_WRITE)) return false;
    gpu().run(gpu().fill, block.address, bytes, seed);
    firn_launched();
    block.seed = seed;
    return true;
  }
  bool read(Block& block) {
    if (block.lost) return true;
    if (!touch(block, FIRN_READ)) return block.lost;
    if (block.seed) gpu().run(gpu().verify, block.address, bytes, block.seed);
    firn_launched();
    if (gpu().synchronize() != CUDA_SUCCESS) wrong("cuCtxSynchronize");
    check();
    return true;
  }
  void cold(Block& block) {
    (void)does("firn_cold", [&] { return firn_cold(block.address, bytes); });
  }
  void drop(size_t index) {
    (void)does("firn_free", [&] { return firn_free(blocks_[index].address, nullptr); });
    blocks_.erase(blocks_.begin() + static_cast<ptrdiff_t>(index));
  }
  // (The JSON library's destructors take memory: without any they end the process.)
  void stats() {
    static char text[1 << 16];
    std::optional<Uncounted> quiet;
    if (allocations_) quiet.emplace();
    (void)timed("firn_stats", [&] { (void)firn_stats(text, sizeof text); return FIRN_OK; });
  }
  static const Gpu& gpu() {
    static const Gpu* made = new Gpu;
    return *made;
  }

  const std::string conf_;
  const bool allocations_;  // fail
  bool opened_ = false;
  std::vector<Block> blocks_;
  std::string last_;
  bool last_lost_ = false;
};

/// The process of a case. Ends by exit(), as programs do.
[[noreturn]] void live(const Case& of, const std::string& folder) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setenv("XDG_RUNTIME_DIR", (folder + "/run").c_str(), 1);
  const std::string conf = fmt::format(
      "firn_budget:16MiB,firn_host:16MiB,firn_watch:0,firn_test_allow_tmpfs:1,firn_io_patience:0s,"
      "firn_store:{},firn_encrypt:{},firn_dir:{}/spill,firn_driver:{}",
      of.store == 1 ? "threads" : "automatic", of.store == 2 ? 1 : 0, folder,
      std::getenv("FIRN_TEST_GPU"));
  (void)::signal(SIGABRT, [](int) {  // whose it is
    void* stack[40];
    const Uncounted quiet;
    ::backtrace_symbols_fd(stack, ::backtrace(stack, 40), STDERR_FILENO);
    (void)::signal(SIGABRT, SIG_DFL);
  });
  (void)begin_interposing(report->failed, sizeof report->failed);
  const Report& known = usual[{of.store, of.kind}];
  const auto kind = static_cast<size_t>(of.kind);
  const bool in_the_end = of.n > known.job[kind];
  Program program(conf, of.kind == Kind::allocation);
  if (of.n && !in_the_end) arm(of.kind, of.n, of.lasting);
  program.job();
  disarm();
  report->met = failed() > 0;
  for (int i = 0; i < 2; ++i) report->job[i] = calls(static_cast<Kind>(i));
  if (of.n == 0 && report->errors) wrong(std::string("without a failure: ") + report->first);
  if (of.n) program.recover();
  if (report->errors) report->lost |= program.has_lost();
  if (in_the_end) arm(of.kind, of.n - known.job[kind], of.lasting);
  program.end();
  std::atexit([] {
    for (int i = 0; i < 2; ++i) report->end[i] = calls(static_cast<Kind>(i)) - report->job[i];
    report->met |= failed() > 0;
  });
  std::exit(report->lost ? 3 : 0);
}

End run(const Case& of) {
  char folder[] = "/tmp/firn-faults-XXXXXX";
  if (!::mkdtemp(folder)) wrong("mkdtemp");
  for (const char* each : {"/spill", "/run"})
    std::filesystem::create_directory(std::string(folder) + each);
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
  if (report->slowest_s > 8)
    wrong(fmt::format("{} took {:.1f} s", report->slowest, report->slowest_s));
  if (!report->met) return End::none;
  return report->errors ? End::error : End::right;
}

std::string words_of(const Case& of) {
  return fmt::format("{} {} {} {}", stores[of.store], kinds[static_cast<size_t>(of.kind)],
                     whens[of.lasting], of.n);
}

bool taken(uint64_t n, uint64_t job, Kind kind) {
  const uint64_t step = kind == Kind::system_call ? 9 : 31;
  switch (length()) {
    case Length::long_: return true;
    case Length::quick: return n % (8 * step) == 1;
    case Length::normal: return n % step == 1 || (n > job && n % 3 == 0);
  }
  return true;
}

int run_all(const std::string& program) {
  std::vector<Case> cases;
  for (unsigned store = 0; store < std::size(stores); ++store) {
    (void)run({store, Kind::system_call, false, 0});
    for (const Kind kind : {Kind::system_call, Kind::allocation}) {
      usual[{store, kind}] = *report;
      const uint64_t job = report->job[static_cast<size_t>(kind)];
      const uint64_t all = job + report->end[static_cast<size_t>(kind)];
      for (const bool lasting : {false, true})
        for (uint64_t n = 1; n <= all; ++n)
          if (taken(n, job, kind)) cases.push_back({store, kind, lasting, n});
    }
  }
  const char* only = std::getenv("FIRN_FAULTS_KIND");
  if (only) std::erase_if(cases, [&](const Case& of) {
    return std::strcmp(only, kinds[static_cast<size_t>(of.kind)]) != 0;
  });
  auto* names = static_cast<char(*)[40]>(shared_memory(cases.size() * 40));
  bool passed = true;
  CaseRuns runs;
  runs.program = program;
  runs.seconds_most = 60;
  runs.words = [&](size_t i) { return words_of(cases[i]); };
  runs.run = [&](size_t i) {
    report = static_cast<Report*>(shared_memory(sizeof *report));
    const End end = run(cases[i]);
    std::memcpy(names[i], report->failed, sizeof names[i]);
    return end;
  };
  const std::vector<End> ends = run_cases(runs, cases.size(), passed);
  std::map<std::string, unsigned> by_name;
  std::printf("%-10s %-12s %-5s %6s %6s %8s %8s %8s\n", "store", "what fails", "when", "calls",
              "runs", "right", "error", "not met");
  for (size_t i = 0; i < cases.size();) {
    const Case& first = cases[i];
    size_t count[4] = {}, all = 0;
    for (; i < cases.size() && cases[i].store == first.store && cases[i].kind == first.kind &&
           cases[i].lasting == first.lasting;
         ++i, ++all) {
      ++count[static_cast<size_t>(ends[i])];
      ++by_name[names[i]];
    }
    const Report& known = usual[{first.store, first.kind}];
    const auto kind = static_cast<size_t>(first.kind);
    std::printf("%-10s %-12s %-5s %6llu %6zu %8zu %8zu %8zu\n", stores[first.store], kinds[kind],
                whens[first.lasting],
                static_cast<unsigned long long>(known.job[kind] + known.end[kind]), all,
                count[static_cast<size_t>(End::right)], count[static_cast<size_t>(End::error)],
                count[static_cast<size_t>(End::none)]);
  }
  std::printf("what failed first, in how many runs:");
  for (const auto& [name, times] : by_name) std::printf(" %s %u", name.c_str(), times);
  std::printf("\n");
  return passed ? 0 : 1;
}

int run_one(char** words) {
  Case of{};
  while (of.store + 1 < std::size(stores) && std::strcmp(words[0], stores[of.store]) != 0)
    ++of.store;
  of.kind = std::strcmp(words[1], kinds[1]) == 0 ? Kind::allocation : Kind::system_call;
  of.lasting = std::strcmp(words[2], whens[1]) == 0;
  of.n = std::strtoull(words[3], nullptr, 10);
  (void)run({of.store, Kind::system_call, false, 0});
  usual[{of.store, of.kind}] = *report;
  const End end = run(of);
  std::printf("%s: %s; %s; %s; slowest %s %.2f s\n", words_of(of).c_str(),
              end == End::right ? "right" : end == End::error ? "an error" : "not met",
              report->failed, report->first, report->slowest, report->slowest_s);
  return 0;
}

}  // namespace
}  // namespace firn::faults

int main(int argc, char** argv) {
  using namespace firn::faults;
  report = static_cast<Report*>(shared_memory(sizeof *report));
  return argc > 4 ? run_one(argv + 1) : run_all(argv[0]);
}
