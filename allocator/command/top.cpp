#include "allocator/command/top.h"

#include <unistd.h>

#include <chrono>
#include <thread>

#include "allocator/base/json_text.h"
#include "allocator/command/job_text.h"
#include "allocator/command/looks.h"
#include "allocator/command/output.h"
#include "allocator/command/report.h"
#include "allocator/command/screen.h"

namespace firn::command {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::ordered_json;
constexpr auto patience = 1000ms;  // with a job that does not answer
constexpr auto between = 1000ms;   // looks
constexpr auto once_between = 500ms;
constexpr size_t sites_once = 3;

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

int once(bool json) {
  Looks looks;
  (void)looks.next(patience);
  std::this_thread::sleep_for(once_between);  // rates need two looks
  const Json look = looks.next(patience);
  Result<void> done = print(json ? dumped(look) : joined(top_lines(look, sites_once)));
  return done ? status_ok : refuse("top: " + done.error().text, 1);
}

/// Prints one document a line, until printing fails.
int stream() {
  for (Looks looks;; std::this_thread::sleep_for(between)) {
    const std::string text =
        json_text(looks.next(patience)) + "\n";
    if (Result<void> done = print(text); !done) return refuse("top: " + done.error().text, 1);
  }
}

}  // namespace

CLI::App* add_top(CLI::App& app, TopOptions& options) {
  CLI::App* sub = app.add_subcommand(
      "top", "Show live jobs: where their memory is, and which code waits");
  sub->add_flag("--once", options.once, "print one snapshot and exit");
  sub->add_flag("--json", options.json, "print JSON; without --once a line each second");
  sub->footer(
      "q quits, arrows and page keys scroll, + and - show more or fewer call sites. RESIDENT is\n"
      "memory on the GPU, HOSTED in host memory, SPILLED on SSDs, FLIGHT between them. OUT and IN\n"
      "are over the link, WRITE and READ the SSDs'. STALL is the share of the last interval in\n"
      "which threads waited for memory: several threads may exceed 100 %.\n"
      "\"waited in all\" counts by operator from the job's start, and by line of the program from\n"
      "the first snapshot on. A narrow terminal shows fewer columns.");
  return sub;
}

int top(const TopOptions& options) {
  if (options.once) return once(options.json);
  if (options.json) return stream();
  if (::isatty(STDOUT_FILENO) != 1 || ::isatty(STDIN_FILENO) != 1)
    return refuse("top: needs a terminal (--once prints one snapshot, --json a line each second)");
  Looks looks;
  Result<void> done = show_screen([&](size_t sites, size_t width) {
    return top_lines(looks.next(patience), sites, width);
  }, between);
  return done ? status_ok : refuse("top: " + done.error().text);
}

}  // namespace firn::command
