#include "allocator/command/sweep.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>

#include "allocator/base/json_text.h"
#include "allocator/command/report.h"
#include "allocator/command/simulate_result.h"
#include "allocator/simulate/cut_lists.h"
#include "allocator/simulate/replay.h"

namespace firn::command {

using Json = nlohmann::ordered_json;

namespace {

// Rehearsals are as exact as that: where making again is faster by less, both ways are simulated.
constexpr double rehearsed_to = .03;

/// What a steady iteration takes, as simulated in a process of its own; none: it does not run.
std::optional<double> steady_apart(const simulate::MachineOptions& machine,
                                   const SimulatePlan& plan,
                                   const simulate::ProgramTrace& trace) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    Result<Json> ran = run_simulation(machine, plan, trace);
    const double steady_s = ran ? ran->at("steady_s").get<double>() : 0;
    ::_exit(::write(ends[1], &steady_s, sizeof steady_s) == sizeof steady_s ? status_ok
                                                                            : status_failed);
  }
  ::close(ends[1]);
  double steady_s = 0;
  ssize_t got = -1;
  while (pid > 0 && (got = ::read(ends[0], &steady_s, sizeof steady_s)) < 0 && errno == EINTR) {
  }
  ::close(ends[0]);
  while (pid > 0 && ::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return got == sizeof steady_s && steady_s > 0 ? std::optional(steady_s) : std::nullopt;
}

}  // namespace

Result<simulate::Remade> prepare_trace(const simulate::ProgramTrace& whole,
                                       const SimulatePlan& plan, uint64_t budget_bytes) {
  simulate::Remade prepared;
  prepared.trace = simulate::cut_lists(whole, budget_bytes);
  if (Result<void> fits = prepared.trace.check_fits(budget_bytes); !fits) return fits.error();
  if (!plan.remake) return prepared;
  simulate::MachineOptions machine = plan.machine;
  machine.gpu_bytes = budget_bytes;
  simulate::Remade remade = simulate::remake(prepared.trace, machine);
  if (remade.values == 0 || remade.faster > rehearsed_to) return remade;
  // A job compares both as well, and gives up what is slower.
  const std::optional<double> alone = steady_apart(machine, plan, prepared.trace),
                              again = steady_apart(machine, plan, remade.trace);
  if (!alone || (again && *again <= *alone)) return remade;
  prepared.choice_s = remade.choice_s;
  return prepared;
}

Result<Json> run_simulation(const simulate::MachineOptions& options, const SimulatePlan& plan,
                            const simulate::ProgramTrace& trace, simulate::Timeline* timeline,
                            std::function<void(unsigned iteration, size_t kernel)> progress) {
  Result<std::unique_ptr<simulate::Machine>> machine = simulate::Machine::open(options);
  if (!machine) return machine.error();
  simulate::ReplayOptions replay_options;
  replay_options.iterations = plan.iterations;
  replay_options.run_ahead = plan.run_ahead;
  replay_options.timeline = timeline;
  replay_options.progress = std::move(progress);
  Result<simulate::ReplayResult> result = simulate::replay(**machine, trace, replay_options);
  if (!result) return result.error();
  return simulate_json(*result);
}

namespace {

/// There is one machine per process: each budget of a sweep runs in its own, and leaves its result
/// in a file of memory.
struct Point {
  uint64_t budget_bytes = 0;
  int fd = -1;
  pid_t pid = -1;
};

/// In the child: never returns.
[[noreturn]] void run_point(const Point& point, const SimulatePlan& plan,
                            const simulate::ProgramTrace& whole) {
  simulate::MachineOptions machine = plan.machine;
  machine.gpu_bytes = point.budget_bytes;
  Result<simulate::Remade> prepared = prepare_trace(whole, plan, point.budget_bytes);
  Result<Json> result = prepared ? run_simulation(machine, plan, prepared->trace)
                                 : Result<Json>(prepared.error());
  if (result) {
    add_remade(*result, *prepared);
    add_wear(*result, plan);
  }
  const Json json = result ? sweep_point(point.budget_bytes, *result, plan)
                           : sweep_failure(point.budget_bytes, result.error().text);
  const std::string text = json_text(json);
  for (size_t at = 0; at < text.size();) {
    const ssize_t put = ::write(point.fd, text.data() + at, text.size() - at);
    if (put < 0 && errno != EINTR) ::_exit(status_failed);
    at += put > 0 ? static_cast<size_t>(put) : 0;
  }
  ::_exit(status_ok);
}

Json take_point(Point& point) {
  int status = 0;
  while (::waitpid(point.pid, &status, 0) < 0 && errno == EINTR) {
  }
  std::string text;
  const off_t size = ::lseek(point.fd, 0, SEEK_END);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && size > 0) {
    text.resize(static_cast<size_t>(size));
    if (::pread(point.fd, text.data(), text.size(), 0) != size) text.clear();
  }
  ::close(point.fd);
  if (!text.empty()) return Json::parse(text);
  return sweep_failure(point.budget_bytes,
                       WIFSIGNALED(status)
                           ? fmt::format("the simulation ended by signal {}", WTERMSIG(status))
                           : "the simulation ended without a result");
}

}  // namespace

Result<Json> run_sweep(const SimulatePlan& plan, const simulate::ProgramTrace& trace) {
  const size_t together = std::max(1u, std::thread::hardware_concurrency());
  std::vector<Point> points;
  Json results = Json::array();
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  std::fflush(nullptr);  // buffered output is the parent's to write
  for (size_t taken = 0; taken < plan.sweep_bytes.size(); ++taken) {
    while (points.size() < plan.sweep_bytes.size() && points.size() < taken + together) {
      Point point{plan.sweep_bytes[points.size()], ::memfd_create("firn-sweep", MFD_CLOEXEC), -1};
      if (point.fd >= 0) point.pid = ::fork();
      if (point.pid == 0) run_point(point, plan, trace);
      if (point.pid < 0)
        return make_error(Code::io, errno, fmt::format("fork: {}", std::strerror(errno)));
      points.push_back(point);
    }
    results.push_back(take_point(points[taken]));
    if (terminal)
      std::fprintf(stderr, "\rfirn simulate: %zu of %zu budgets\033[K", taken + 1,
                   plan.sweep_bytes.size());
  }
  if (terminal) std::fputs("\r\033[K", stderr);
  return results;
}

}  // namespace firn::command
