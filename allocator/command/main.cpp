// The command `firn`: reads the command line and hands over to one file per subcommand.
// Owns: nothing. Locks: none.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "allocator/command/doctor.h"
#include "allocator/command/jobs.h"
#include "allocator/command/layout.h"
#include "allocator/command/order.h"
#include "allocator/command/report.h"
#include "allocator/command/run.h"
#include "allocator/command/simulate.h"
#include "allocator/command/top.h"
#include "allocator/command/trace_report.h"
#include "allocator/runtime/config.h"

namespace {

using namespace firn::command;

// `firn run` and `firn doctor` end at the first "--": cuts that and everything after it off,
// whatever it looks like, and returns it.
std::vector<std::string> take_command(std::vector<std::string>& arguments) {
  if (arguments.empty() || (arguments.front() != "run" && arguments.front() != "doctor")) return {};
  const auto mark = std::find(arguments.begin(), arguments.end(), "--");
  if (mark == arguments.end()) return {};
  std::vector<std::string> command(mark, arguments.end());
  arguments.erase(mark, arguments.end());
  return command;
}

// COMMAND: after the "--", or from the first word that is no option's (a "--" is its own then).
// Returns a word that may not stand there; else an empty string.
std::string complete_command(const CLI::App& app, std::vector<std::string>& command) {
  const std::vector<std::string> before = app.remaining();
  if (!before.empty() && before.front().starts_with("-")) return before.front();
  if (before.empty() && !command.empty()) command.erase(command.begin());
  command.insert(command.begin(), before.begin(), before.end());
  return {};
}

int firn_main(std::vector<std::string> arguments) {
  std::vector<std::string> command = take_command(arguments);
  CLI::App app(
      "Firn: GPU memory that ages. Cold blocks leave the GPU for pinned host memory and "
      "NVMe, and are back before they are used.");
  app.name("firn");
  app.set_version_flag("--version", "firn " FIRN_VERSION);
  app.require_subcommand(0, 1);
  app.footer(
      "firn COMMAND --help shows more. Exit status 2: firn refused an argument, and one line says "
      "why.");
  RunOptions run_options;
  DoctorOptions doctor_options;
  SimulateOptions simulate_options;
  LayoutOptions layout_options;
  OrderOptions order_options;
  TopOptions top_options;
  JobOptions stats_options, spill_options;
  TraceReportOptions report_options;
  const CLI::App* run_app = add_run(app, run_options);
  const CLI::App* doctor_app = add_doctor(app, doctor_options);
  const CLI::App* simulate_app = add_simulate(app, simulate_options);
  const CLI::App* layout_app = add_layout(app, layout_options);
  const CLI::App* order_app = add_order(app, order_options);
  const CLI::App* top_app = add_top(app, top_options);
  const CLI::App* stats_app = add_stats(app, stats_options);
  const CLI::App* spill_app = add_spill(app, spill_options);
  const CLI::App* report_app = add_trace_report(app, report_options);
  const std::vector<CLI::App*> known = app.get_subcommands([](CLI::App*) { return true; });
  if (!arguments.empty() && !arguments.front().starts_with("-") &&
      std::none_of(known.begin(), known.end(),
                   [&](const CLI::App* each) { return each->check_name(arguments.front()); }))
    return refuse("unknown command " + firn::quote_word(arguments.front()) +
                  " (see --help)");
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  try {
    app.parse(arguments);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    std::string prefix;
    for (const CLI::App* each : {run_app, doctor_app, simulate_app, layout_app, order_app, top_app,
                                 stats_app, spill_app, report_app})
      if (each->parsed()) prefix = each->get_name() + ": ";
    return refuse(prefix + error.what() + " (see --help)");
  }
  for (const CLI::App* each : {run_app, doctor_app}) {
    if (!each->parsed()) continue;
    if (const std::string word = complete_command(*each, command); !word.empty())
      return refuse(each->get_name() + ": unknown option " + firn::quote_word(word) +
                    " (see --help)");
  }
  if (run_app->parsed()) return run(run_options, command);
  if (doctor_app->parsed()) return doctor(doctor_options, command);
  if (simulate_app->parsed()) return simulate(simulate_options);
  if (layout_app->parsed()) return layout(layout_options);
  if (order_app->parsed()) return order(order_options);
  if (top_app->parsed()) return top(top_options);
  if (stats_app->parsed()) return stats(stats_options);
  if (spill_app->parsed()) return spill(spill_options);
  if (report_app->parsed()) return trace_report(report_options);
  return refuse("no command (see --help)");
}

}  // namespace

int main(int count, char** words) {
  try {
    return firn_main({words + 1, words + count});
  } catch (const std::exception& error) {  // the parsing and JSON libraries throw
    return refuse(std::string("internal error: ") + error.what(), 1);
  }
}
