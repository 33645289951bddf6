#include "allocator/command/trace_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "allocator/command/output.h"
#include "allocator/command/report.h"
#include "allocator/command/simulate_words.h"
#include "allocator/command/sweep.h"
#include "allocator/record/program_files.h"
#include "allocator/report/page.h"
#include "allocator/runtime/config.h"

namespace firn::command {
namespace {

using Json = nlohmann::ordered_json;
constexpr unsigned budgets_most = 8;
constexpr unsigned iterations = 4;
// A kernel takes 2 to 200 us to simulate: together half a minute or so.
constexpr size_t kernels_run_most = 400'000;

int refused(const std::string& text) { return refuse("report: " + text); }

Json because(std::string why) { return {{"why", std::move(why)}}; }

/// The bandwidth measured while it ran, or what `firn simulate` takes by itself.
std::string bandwidth(const std::map<std::string, uint64_t>& totals, const char* key,
                      const std::string& otherwise) {
  const auto found = totals.find(key);
  return found == totals.end() || found->second < (1u << 20)
             ? otherwise
             : fmt::format("{}MiB/s", found->second >> 20);
}

/// The trace's first device, and the files beside the trace that `firn simulate` reads.
Json at_other_budgets(const std::string& path, const report::Lives& lives) {
  const report::DeviceLives& first = lives.devices.begin()->second;
  if (lives.ended && first.lives.empty()) return because("Nothing was allocated.");
  const std::string prefix = record::program_prefix(path);
  std::error_code error;
  if (!std::filesystem::exists(prefix + ".kernels.csv", error))
    return because("Not known: " + prefix + ".kernels.csv is missing. A job that runs to its end "
                   "under firn run --trace leaves it beside the trace.");
  if (first.totals.empty())
    return because("Not known: the trace is cut off, and its end would hold the measurements.");
  const auto& totals = first.totals;
  const auto peak = totals.find("peak_allocated");
  if (peak == totals.end() || peak->second == 0) return because("Nothing was allocated.");
  SimulateOptions options;
  options.prefix = prefix;
  options.iterations = std::to_string(iterations);
  options.pcie = bandwidth(totals, "host_out_s", options.pcie);
  options.ssd_write = bandwidth(totals, "store_write_s", options.ssd_write);
  options.ssd_read = bandwidth(totals, "store_read_s", options.ssd_read);
  std::string host_words;
  if (lives.host_bytes) options.host = format_size(std::max(lives.host_bytes, host_bytes_least));
  if (lives.host_bytes && lives.host_bytes < host_bytes_least)
    host_words = fmt::format(" (this run had {})", format_size(lives.host_bytes));
  if (lives.policy == "age") options.policy = "age";
  options.gpu_memory = std::to_string(peak->second);
  Result<SimulatePlan> plan = parse_simulate(options);
  if (!plan) return because("Not known: " + plan.error().text);
  Result<simulate::ProgramTrace> trace = simulate::read_program_trace(prefix, iterations);
  if (!trace) return because("Not known: " + trace.error().text);
  const size_t points =
      std::min<size_t>(budgets_most, kernels_run_most / (trace->kernels.size() * iterations + 1));
  if (points < 2)
    return because(fmt::format("Left out: an iteration has {} kernels, which take long to "
                               "simulate. firn simulate {} --sweep does it.",
                               trace->kernels.size(), prefix));
  // From all that was allocated down to 30 % of it.
  for (size_t i = 0; i < points; ++i)
    plan->sweep_bytes.push_back(
        peak->second * (10 * (points - 1) - 7 * i) / (10 * (points - 1)) / (2u << 20) * (2u << 20) +
        (i == 0 ? 2u << 20 : 0));
  std::reverse(plan->sweep_bytes.begin(), plan->sweep_bytes.end());
  Result<Json> swept = run_sweep(*plan, *trace);
  if (!swept) return because("Not known: " + swept.error().text);
  return {{"points", *swept},
          {"machine",
           fmt::format("One iteration of this job ({} kernels), by firn simulate {} with a link of "
                       "{}, one SSD that reads {} and writes {}{}, {} of host memory{}, policy {}. "
                       "Kernels take the time that they took on the GPU of this run.",
                       trace->kernels.size(), std::filesystem::path(prefix).filename().string(),
                       options.pcie, options.ssd_read, options.ssd_write,
                       lives.store ? " (all as measured in this run, where enough moved)"
                                   : " (this run had none)",
                       options.host.value_or("1GiB"), host_words, options.policy)}};
}

}  // namespace

CLI::App* add_trace_report(CLI::App& app, TraceReportOptions& options) {
  CLI::App* sub = app.add_subcommand(
      "report", "Make a page of a trace: where memory was, each block's life, which code waited");
  sub->add_option("TRACE", options.trace,
                  "the file that firn run --trace wrote (.csv may be left out)")
      ->required()
      ->type_name("");
  sub->add_option("-o", options.out, "the page: one file, which works offline")
      ->required()
      ->type_name("OUT.html");
  sub->footer("The page names the program's files and lines: share it with care.");
  return sub;
}

int trace_report(const TraceReportOptions& asked) {
  TraceReportOptions options = asked;
  std::error_code none;
  if (!std::filesystem::exists(options.trace, none) &&
      std::filesystem::exists(options.trace + ".csv", none))
    options.trace += ".csv";  // the name that firn simulate takes
  Result<std::string> out = output_path("-o", options.out);
  if (!out) return refused(out.error().text);
  Result<report::TraceFile> file = report::TraceFile::open(options.trace);
  if (!file) return refused(file.error().text);
  Result<report::Lives> lives = report::Lives::read(*file);
  if (!lives) return refused(lives.error().text);
  std::error_code error;
  if (std::filesystem::equivalent(options.trace, *out, error))
    return refused("-o " + quote_word(options.out) + ": is the trace itself");
  const std::string page =
      report::make_page(*lives, std::filesystem::path(options.trace).filename().string(),
                        at_other_budgets(options.trace, *lives));
  const Result<void> done = write_whole("-o", *out, page);
  if (!done) return refused(done.error().text);
  if (!lives->ended || lives->cut)
    warn("report: " + options.trace + " is incomplete (its process was killed or still runs, or "
         "the file was cut off): the page shows the part that exists");
  return status_ok;
}

}  // namespace firn::command
