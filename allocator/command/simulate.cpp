// Locks: none.
#include "allocator/command/simulate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "allocator/base/json_text.h"
#include "allocator/command/lifetimes.h"
#include "allocator/command/output.h"
#include "allocator/command/plotter.h"
#include "allocator/command/report.h"
#include "allocator/command/simulate_result.h"
#include "allocator/command/simulate_words.h"
#include "allocator/command/sweep.h"
#include "allocator/runtime/config.h"
#include "allocator/simulate/replay.h"

namespace firn::command {
namespace {

using Json = nlohmann::ordered_json;

int refuse_simulate(const std::string& text, int status = status_bad_input) {
  return refuse("simulate: " + text, status);
}

int print_simulate(const std::string& text) {
  Result<void> done = print(text);
  return done ? status_ok : refuse_simulate(done.error().text, status_failed);
}

/// One line on standard error that is written over, when that is a terminal and it takes a while.
class Progress {
 public:
  explicit Progress(unsigned iterations) : iterations_(iterations) {}
  ~Progress() { clear(); }
  void show(unsigned iteration, size_t kernel, size_t kernels) {
    if (!terminal_) return;
    const auto now = Clock_::now();
    if (now < next_) return;
    next_ = now + std::chrono::milliseconds(200);
    std::fprintf(stderr, "\rfirn simulate: iteration %u of %u, kernel %zu of %zu\033[K",
                 iteration + 1, iterations_, kernel + 1, kernels);
    shown_ = true;
  }
  void clear() {
    if (shown_) std::fputs("\r\033[K", stderr);
    shown_ = false;
  }

 private:
  using Clock_ = std::chrono::steady_clock;
  const unsigned iterations_;
  const bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool shown_ = false;
  Clock_::time_point next_ = Clock_::now() + std::chrono::seconds(1);
};

int simulate_once(const SimulateOptions& options, const SimulatePlan& plan,
                  const simulate::ProgramTrace& whole, const std::optional<Plotter>& plotter) {
  Result<simulate::Remade> prepared = prepare_trace(whole, plan, plan.machine.gpu_bytes);
  if (!prepared) return refuse_simulate(prepared.error().text);
  const simulate::ProgramTrace& trace = prepared->trace;
  simulate::Timeline timeline;
  const bool watched = plotter || !plan.timeline.empty();
  Progress progress(plan.iterations);
  Result<Json> result =
      run_simulation(plan.machine, plan, trace, watched ? &timeline : nullptr,
                     [&](unsigned iteration, size_t kernel) {
                       progress.show(iteration, kernel, trace.kernels.size());
                     });
  progress.clear();
  if (!result) return refuse_simulate(result.error().text, status_failed);
  add_remade(*result, *prepared);
  add_wear(*result, plan);
  Result<void> done;
  if (!plan.timeline.empty())
    done = write_file("--timeline", plan.timeline, chrome_trace(timeline, trace));
  if (done && plotter) done = plotter->draw(plot_data(timeline), plan.plot);
  if (!done) return refuse_simulate(done.error().text, status_failed);
  return print_simulate(options.json
                   ? dumped(*result)
                   : simulate_text(*result, plan, options.prefix, whole.kernels.size()));
}

int simulate_sweep(const SimulateOptions& options, const SimulatePlan& plan,
                   const simulate::ProgramTrace& trace, const std::optional<Plotter>& plotter) {
  Result<Json> points = run_sweep(plan, trace);
  if (!points) return refuse_simulate(points.error().text, status_failed);
  const bool none = std::all_of(points->begin(), points->end(),
                                [](const Json& point) { return point.contains("error"); });
  if (none)
    return refuse_simulate(
        fmt::format("the program runs at no budget of the sweep; at {}: {}",
                    format_size(points->back().at("budget_bytes").get<uint64_t>()),
                    points->back().at("error").get<std::string>()),
        status_failed);
  if (plotter) {
    const Json data = {{"kind", "sweep"}, {"points", *points}};
    if (Result<void> done = plotter->draw(json_text(data), plan.plot); !done)
      return refuse_simulate(done.error().text, status_failed);
  }
  return print_simulate(options.json ? dumped({{"sweep", *points}}) : sweep_text(*points));
}

int show_lifetimes(const SimulateOptions& options, const SimulatePlan& plan,
                   const simulate::ProgramTrace& trace, const std::optional<Plotter>& plotter) {
  const Json found = lifetimes_json(simulate::activity_of(trace));
  if (plotter) {
    Json data = found;
    data["kind"] = "lifetimes";
    if (Result<void> done = plotter->draw(json_text(data), plan.plot); !done)
      return refuse_simulate(done.error().text, status_failed);
  }
  return print_simulate(options.json ? dumped(found)
                                     : lifetimes_text(found, options.prefix,
                                                      trace.kernels.size()));
}

}  // namespace

CLI::App* add_simulate(CLI::App& app, SimulateOptions& options) {
  CLI::App* sub = app.add_subcommand(
      "simulate", "Run a trace on a modelled machine, and compare its time with the ideal");
  sub->add_option("PREFIX", options.prefix,
                  "the trace: PREFIX.tensors.csv and PREFIX.kernels.csv (or one of their names)")
      ->required()
      ->type_name("");
  const auto add = [&](const char* name, auto& to, const std::string& meaning, const char* type) {
    sub->add_option(name, to, meaning)->type_name(type);
  };
  add("--gpu-memory", options.gpu_memory, "the GPU's memory, which is also Firn's budget", "SIZE");
  add("--ssd-read", options.ssd_read, "reads of each SSD [3.2GiB/s]", "BANDWIDTH");
  add("--ssd-write", options.ssd_write, "writes of each SSD [3.2GiB/s]", "BANDWIDTH");
  add("--pcie", options.pcie, "the link between GPU and host, each way [15.754GiB/s]",
      "BANDWIDTH");
  add("--host", options.host,
      "host memory for staging and for spilled blocks; 1GiB is staging only [1GiB]", "SIZE");
  add("--policy", options.policy,
      "age: the block unused for longest leaves first; lifetime: Firn plans by next uses once it "
      "has found the period; oracle: the same, with the period known from the start; greedy: the "
      "published plan of migrations, made once the period is found [lifetime]",
      "age|lifetime|oracle|greedy");
  add("--iterations", options.iterations,
      "number of iterations; the steady state is the mean of the last half [6]", "N");
  add("--run-ahead", options.run_ahead,
      "kernels that the program enqueues ahead of the running one [0]", "N");
  add("--spare", options.spare,
      "part of the memory that Firn may write ahead beyond the foreseen shortage; 0 writes least "
      "[0.0625]", "FRACTION");
  add("--remake", options.remake,
      "on: values that operators make again sooner than they move are made again, as a job's "
      "with firn_remake:1 are [off]", "on|off");
  add("--ssd-latency", options.ssd_latency, "latency of each request [20us]", "TIME");
  add("--ssds", options.ssds, "number of SSDs, which get blocks in turn [1]", "N");
  sub->add_flag("--no-driver-costs", options.no_driver_costs,
                "the driver's mapping calls take no time [as long as on an A100]");
  sub->add_flag("--lifetimes", options.lifetimes,
                "of the trace alone (no --gpu-memory): how much of its memory kernels use at a "
                "time, and for how long the rest lies idle");
  sub->add_flag("--json", options.json, "the results as JSON");
  add("--timeline", options.timeline, "write a timeline here, in Chrome's trace format",
      "FILE.json");
  add("--plot", options.plot,
      "draw memory and stalls over time here, or the sweep's curve, or the lifetimes", "FILE.png");
  add("--sweep", options.sweep,
      "budget=FIRST:LAST:STEP: one run for each size of GPU memory (instead of --gpu-memory)",
      "RANGE");
  add("--ssd-endurance", options.endurance,
      "bytes that each SSD endures being written (TBW): shows how long they last at this speed",
      "SIZE");
  sub->footer(
      "Sizes: 40GiB, 512MiB. Bandwidths: 3.2GiB/s, 7GB/s. Times: 20us, 1ms.\n"
      "The engine is the one that serves real programs. GPU, link and SSDs are modelled on a\n"
      "virtual clock: the same arguments give the same figures. Exit status 2: firn refused an\n"
      "argument or a file; 1: the program ran out of memory.");
  return sub;
}

namespace {
/// Rows at the host are known to the engine's own policies alone.
Result<void> able_with_host_rows(const SimulatePlan& plan, const std::string& path) {
  if (plan.remake)
    return invalid("--remake on: " + path + " has rows at the host (where), which no rehearsal of "
                   "what is made again knows");
  const simulate::ComparedPolicy policy = plan.machine.policy;
  if (policy == simulate::ComparedPolicy::oracle || policy == simulate::ComparedPolicy::greedy)
    return invalid("--policy: " + path + " has rows at the host (where), which only age and "
                   "lifetime know");
  return {};
}

/// The prefix, also where one of the files is named, or the trace that lies beside them.
std::string prefix_of(const std::string& word) {
  std::error_code error;
  if (std::filesystem::exists(word + ".kernels.csv", error)) return word;
  for (const std::string_view end : {".tensors.csv", ".kernels.csv", ".csv"})
    if (word.ends_with(end)) return word.substr(0, word.size() - end.size());
  return word;
}
}  // namespace

int simulate(const SimulateOptions& asked) {
  SimulateOptions options = asked;
  options.prefix = prefix_of(asked.prefix);
  Result<SimulatePlan> plan = parse_simulate(options);
  if (!plan) return refuse_simulate(plan.error().text);
  std::optional<Plotter> plotter;
  if (!plan->plot.empty()) {
    Result<Plotter> found = Plotter::find();
    if (!found) return refuse_simulate("--plot: " + found.error().text);
    plotter = std::move(*found);
  }
  Result<simulate::ProgramTrace> trace =
      simulate::read_program_trace(options.prefix, plan->iterations);
  if (!trace) return refuse_simulate(trace.error().text);
  if (trace->host_rows > 0 && !options.lifetimes)
    if (Result<void> able = able_with_host_rows(*plan, trace->kernels_path); !able)
      return refuse_simulate(able.error().text);
  if (options.lifetimes) return show_lifetimes(options, *plan, *trace, plotter);
  if (plan->sweep_bytes.empty()) return simulate_once(options, *plan, *trace, plotter);
  return simulate_sweep(options, *plan, *trace, plotter);
}

}  // namespace firn::command
