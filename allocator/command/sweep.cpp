#include "allocator/command/sweep.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <thread>

#include "allocator/base/json_text.h"
#include "allocator/command/report.h"
#include "allocator/command/simulate_result.h"
#include "allocator/simulate/cut_lists.h"
#include "allocator/simulate/replay.h"

namespace firn::command {

using Json = nlohmann::ordered_json;

namespace {

/// There is one machine per process: others run in processes of their own, and leave their results
/// in files of memory.
struct Apart {
  int fd = -1;
  pid_t pid = -1;
};

/// In the child: never returns.
[[noreturn]] void leave_result(int fd, const Json& result) {
  const std::string text = json_text(result);
  for (size_t at = 0; at < text.size();) {
    const ssize_t put = ::write(fd, text.data() + at, text.size() - at);
    if (put < 0 && errno != EINTR) ::_exit(status_failed);
    at += put > 0 ? static_cast<size_t>(put) : 0;
  }
  ::_exit(status_ok);
}

Result<Apart> begin_apart(const std::function<Json()>& run) {
  std::fflush(nullptr);  // buffered output is the parent's to write
  Apart apart{::memfd_create("firn-simulate", MFD_CLOEXEC), -1};
  if (apart.fd >= 0) apart.pid = ::fork();
  if (apart.pid == 0) leave_result(apart.fd, run());
  if (apart.pid > 0) return apart;
  const int why = errno;
  if (apart.fd >= 0) ::close(apart.fd);
  return make_error(Code::io, why, fmt::format("fork: {}", std::strerror(why)));
}

Result<Json> end_apart(const Apart& apart) {
  int status = 0;
  while (::waitpid(apart.pid, &status, 0) < 0 && errno == EINTR) {
  }
  std::string text;
  const off_t size = ::lseek(apart.fd, 0, SEEK_END);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && size > 0) {
    text.resize(static_cast<size_t>(size));
    if (::pread(apart.fd, text.data(), text.size(), 0) != size) text.clear();
  }
  ::close(apart.fd);
  if (!text.empty()) return Json::parse(text);
  return make_error(Code::io, 0,
                    WIFSIGNALED(status)
                        ? fmt::format("the simulation ended by signal {}", WTERMSIG(status))
                        : "the simulation ended without a result");
}

// Rehearsals are as exact as that: where making again is faster by less, both ways are simulated.
constexpr double rehearsed_to = .03;

/// Is the one trace no slower than the other, as simulated side by side? One that does not run is.
bool no_slower(const simulate::MachineOptions& machine, const SimulatePlan& plan,
               const simulate::ProgramTrace& one, const simulate::ProgramTrace& other) {
  constexpr double never = std::numeric_limits<double>::infinity();
  const auto begin = [&](const simulate::ProgramTrace& trace) {
    return begin_apart([&] {
      Result<Json> ran = run_simulation(machine, plan, trace);
      return ran ? std::move(*ran) : Json::object();
    });
  };
  const auto steady_s = [&](const Result<Apart>& apart) {
    const Result<Json> ran = apart ? end_apart(*apart) : Result<Json>(apart.error());
    return ran ? (*ran).value("steady_s", never) : never;
  };
  const Result<Apart> first = begin(one), second = begin(other);
  const double first_s = steady_s(first), second_s = steady_s(second);
  return first_s <= second_s;
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
  if (no_slower(machine, plan, remade.trace, prepared.trace)) return remade;
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

Json point_of(uint64_t budget_bytes, const SimulatePlan& plan,
              const simulate::ProgramTrace& whole) {
  simulate::MachineOptions machine = plan.machine;
  machine.gpu_bytes = budget_bytes;
  Result<simulate::Remade> prepared = prepare_trace(whole, plan, budget_bytes);
  Result<Json> result = prepared ? run_simulation(machine, plan, prepared->trace)
                                 : Result<Json>(prepared.error());
  if (!result) return sweep_failure(budget_bytes, result.error().text);
  add_remade(*result, *prepared);
  add_wear(*result, plan);
  return sweep_point(budget_bytes, *result, plan);
}

}  // namespace

Result<Json> run_sweep(const SimulatePlan& plan, const simulate::ProgramTrace& trace) {
  const size_t together = std::max(1u, std::thread::hardware_concurrency());
  std::vector<Apart> points;
  Json results = Json::array();
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  for (size_t taken = 0; taken < plan.sweep_bytes.size(); ++taken) {
    while (points.size() < plan.sweep_bytes.size() && points.size() < taken + together) {
      const uint64_t budget_bytes = plan.sweep_bytes[points.size()];
      const Result<Apart> point =
          begin_apart([&] { return point_of(budget_bytes, plan, trace); });
      if (!point) return point.error();
      points.push_back(*point);
    }
    Result<Json> found = end_apart(points[taken]);
    results.push_back(found ? std::move(*found)
                            : sweep_failure(plan.sweep_bytes[taken], found.error().text));
    if (terminal)
      std::fprintf(stderr, "\rfirn simulate: %zu of %zu budgets\033[K", taken + 1,
                   plan.sweep_bytes.size());
  }
  if (terminal) std::fputs("\r\033[K", stderr);
  return results;
}

}  // namespace firn::command
