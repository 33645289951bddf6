#include "allocator/command/jobs.h"

#include <fmt/format.h>

#include <optional>

#include "allocator/base/numbers.h"
#include "allocator/command/job_socket.h"
#include "allocator/command/job_text.h"
#include "allocator/command/output.h"
#include "allocator/command/report.h"
#include "allocator/runtime/config.h"
#include "allocator/runtime/metrics_text.h"

namespace firn::command {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::chrono::milliseconds stats_patience{5'000};
constexpr std::chrono::milliseconds spill_patience{600'000};  // as slow as an SSD may be

Result<pid_t> parse_process(const std::string& word) {
  const std::optional<pid_t> process = as_number<pid_t>(word);
  if (!process || *process <= 0)
    return invalid(quote_word(word) + " is not a process id");
  return *process;
}

Result<Json> asked(const JobOptions& options, const char* word,
                   std::chrono::milliseconds patience) {
  Result<pid_t> process = parse_process(options.process);
  if (!process) return process.error();
  if (patience > stats_patience)  // a job that answers at all does so soon
    if (Result<Json> alive = ask_job(*process, "stats", stats_patience); !alive)
      return alive.error();
  return ask_job(*process, word, patience);
}

int refused(const char* command, const Error& error) {
  return refuse(fmt::format("{}: {}", command, error.text),
                error.code == Code::invalid_argument ? status_bad_input : status_failed);
}

int shown(const char* command, const std::string& text, int status = status_ok) {
  Result<void> done = print(text);
  return done ? status : refused(command, done.error());
}

}  // namespace

CLI::App* add_stats(CLI::App& app, JobOptions& options) {
  CLI::App* sub = app.add_subcommand("stats", "Show the memory of a running job");
  sub->add_option("PID", options.process, "the process")->required()->type_name("");
  CLI::Option* const json =
      sub->add_flag("--json", options.json, "the document of firn run --stats, as it is now");
  sub->add_flag("--metrics", options.metrics, "the figures as OpenMetrics text, for monitoring")
      ->excludes(json);
  sub->footer("With firn_metrics a job publishes these figures by itself (firn run --help).");
  return sub;
}

int stats(const JobOptions& options) {
  Result<Json> document = asked(options, "stats", stats_patience);
  if (!document) return refused("stats", document.error());
  return shown("stats", options.json      ? dumped(*document)
                        : options.metrics ? metrics_text(*document)
                                          : stats_text(*document));
}

CLI::App* add_spill(CLI::App& app, JobOptions& options) {
  CLI::App* sub = app.add_subcommand(
      "spill", "Move an idle job's memory off the GPU; it comes back as the job uses it");
  sub->add_option("PID", options.process, "the process")->required()->type_name("");
  sub->add_flag("--json", options.json, "the memory that left and that stays, as JSON");
  sub->footer("Exit status 1: no memory could leave; the output says why.");
  return sub;
}

int spill(const JobOptions& options) {
  Result<Json> document = asked(options, "spill", spill_patience);
  if (!document) return refused("spill", document.error());
  uint64_t before = 0, after = 0;
  bool hindered = false;
  for (const Json& device : document->at("devices")) {
    before += device.at("before_bytes").get<uint64_t>();
    after += device.at("device_bytes").get<uint64_t>();
    hindered |= !device.at("watching").get<bool>() || !device.at("trouble").empty();
  }
  // Pinned memory stays, and memory that was away already is no failure.
  const int status = hindered && after > 0 && after >= before ? status_failed : status_ok;
  return shown("spill", options.json ? dumped(*document) : spill_text(*document), status);
}

}  // namespace firn::command
