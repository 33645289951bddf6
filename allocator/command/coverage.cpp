// Locks: none.
#include "allocator/command/coverage.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "allocator/base/json_text.h"
#include "allocator/command/output.h"
#include "allocator/command/report.h"
#include "allocator/command/run.h"

namespace firn::command {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

// A folder of its own, gone at the end.
class Folder {
 public:
  Folder() {
    std::error_code error;
    std::string name = (fs::temp_directory_path(error) / "firn-doctor-XXXXXX").string();
    if (!error && ::mkdtemp(name.data())) path_ = name;
  }
  ~Folder() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// The status as shells report it; negative: COMMAND was not started, errno says why.
int run_command(const CoverageOptions& options, const std::vector<std::string>& command,
                const fs::path& folder) {
  // An interrupt is COMMAND's; its report is printed all the same.
  struct sigaction ignored {
  }, interrupted{};
  ignored.sa_handler = SIG_IGN;
  ::sigaction(SIGINT, &ignored, &interrupted);
  const pid_t child = ::fork();
  if (child == 0) {
    ::sigaction(SIGINT, &interrupted, nullptr);
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    RunOptions run_options;
    run_options.device = options.device;
    run_options.gpu_memory = options.gpu_memory;
    run_options.stats = (folder / "%p.json").string();
    ::_exit(run(run_options, command));
  }
  int status = 0;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  ::sigaction(SIGINT, &interrupted, nullptr);
  if (child < 0) return -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// The statistics that each process wrote, by process id.
Json read_processes(const fs::path& folder) {
  std::vector<Json> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::ifstream file(it->path());
    Json stats = Json::parse(file, nullptr, false);
    if (stats.is_object() && stats.contains("pid")) found.push_back(std::move(stats));
  }
  std::sort(found.begin(), found.end(),
            [](const Json& a, const Json& b) { return a["pid"] < b["pid"]; });
  return found;
}

void add_list(std::string& out, const char* title, const std::vector<std::string>& words) {
  out += fmt::format("  {:<26} {}\n", title, words.size());
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty() && line.size() + word.size() > 88) {
      out += "    " + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  if (!line.empty()) out += "    " + line + "\n";
}

std::vector<std::string> words_of(const Json& coverage, const char* name) {
  std::vector<std::string> words;
  if (const auto found = coverage.find(name); found != coverage.end())
    for (const Json& each : *found)
      words.push_back(
          each.is_string() ? each.get<std::string>()
          : each.contains("version")
              ? fmt::format("{}@{}", each.value("name", std::string()), each.value("version", 0))
              : json_text(each));
  return words;
}

void add_process(std::string& out, const Json& stats) {
  out += fmt::format("process {}\n", stats["pid"].get<long>());
  const auto found = stats.find("coverage");
  if (found == stats.end() || !found->is_object()) {
    out +=
        "  Firn managed memory here without standing in front of the driver: it saw only the\n"
        "  launches that PyTorch's operators make\n";
    return;
  }
  const Json& coverage = *found;
  out += fmt::format("  driver {}\n", coverage.value("driver", std::string()));
  add_list(out, "asked for, seen by Firn", words_of(coverage, "hooked"));
  add_list(out, "asked for, passed on", words_of(coverage, "passed"));
  add_list(out, "not in this driver", words_of(coverage, "missing"));
  add_list(out, "newer than Firn's list", words_of(coverage, "unknown"));
  std::vector<std::string> calls;
  const Json counted = coverage.value("calls", Json::object());
  for (const auto& [entry, count] : counted.items())
    calls.push_back(fmt::format("{}:{}", entry, json_text(count)));
  add_list(out, "calls seen", calls);
  for (const auto& [name, value] : coverage.items())
    if (value.is_number()) out += fmt::format("  {:<26} {}\n", name, json_text(value));
  for (const std::string& word : words_of(coverage, "unseen")) out += "  not seen: " + word + "\n";
  for (const std::string& word : words_of(coverage, "warnings")) out += "  WARNING: " + word + "\n";
}

}  // namespace

std::string coverage_text(const Json& report) {
  std::string out;
  for (const Json& stats : report["processes"]) add_process(out, stats);
  for (const std::string& word : words_of(report, "warnings")) out += "WARNING: " + word + "\n";
  out += "never seen, in any program:\n";
  for (const std::string& word : words_of(report, "never_seen")) out += "  " + word + "\n";
  return out;
}

int report_coverage(const CoverageOptions& options, const std::vector<std::string>& command) {
  const Folder folder;
  if (folder.path().empty())
    return refuse(fmt::format("doctor: cannot make a temporary folder: {}", std::strerror(errno)),
                  1);
  const int status = run_command(options, command, folder.path());
  if (status < 0) return refuse(fmt::format("doctor: fork: {}", std::strerror(errno)), 1);
  Json report = {{"command", command}, {"status", status}};
  report["processes"] = read_processes(folder.path());
  report["warnings"] = Json::array();
  report["never_seen"] = {"other link namespaces (dlmopen)",
                          "the driver's path opened by a library that itself was opened with "
                          "RTLD_DEEPBIND",
                          "the driver's private tables (cuGetExportTable)",
                          "statically linked programs, and programs with another user's rights"};
  // A refused command has printed its reason.
  if (report["processes"].empty() && status != status_bad_input && status < status_not_executable)
    report["warnings"].push_back(
        "Firn saw no process of this command open the driver: the command does without CUDA, or "
        "bypasses Firn");
  if (Result<void> done = print(options.json ? dumped(report) : coverage_text(report)); !done)
    return refuse("doctor: " + done.error().text, 1);
  return status;
}

}  // namespace firn::command
