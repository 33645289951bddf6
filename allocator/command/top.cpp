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
  CLI::App* sub = app.add_subcommand("top", "Live jobs: where their memory is, and who waits");
  sub->add_flag("--once", options.once, "one look, and no more");
  sub->add_flag("--json", options.json, "as JSON; without --once a line each second");
  sub->footer(
      "q ends, arrows and page keys move, + and - show more or fewer call sites. RESIDENT is on\n"
      "the GPU, HOSTED in host memory, SPILLED on SSDs, FLIGHT on its way. OUT and IN are over\n"
      "the link, WRITE and READ the SSDs'. STALL is how much of the time between two looks threads\n"
      "waited for memory: several threads may be above 100 %.\n"
      "\"waited in all\" counts from the job's start by operator, and by the program's line from\n"
      "the first look on. Where the terminal is narrow, columns are left out.");
  return sub;
}

int top(const TopOptions& options) {
  if (options.once) return once(options.json);
  if (options.json) return stream();
  if (::isatty(STDOUT_FILENO) != 1 || ::isatty(STDIN_FILENO) != 1)
    return refuse("top: this is no terminal (--once shows one look, --json a line each second)");
  Looks looks;
  Result<void> done = show_screen([&](size_t sites, size_t width) {
    return top_lines(looks.next(patience), sites, width);
  }, between);
  return done ? status_ok : refuse("top: " + done.error().text);
}

}  // namespace firn::command
