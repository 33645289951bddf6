// Locks: none.
#include "allocator/command/plotter.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "allocator/command/paths.h"
#include "allocator/command/report.h"
#include "firn/output_file.h"

extern char** environ;

namespace firn::command {
namespace {

Error no_plot(std::string text) { return make_error(Code::not_supported, 0, std::move(text)); }

/// A file in memory that closes with its scope.
class Scratch {
 public:
  explicit Scratch(const std::string& text) : fd_(::memfd_create("firn-plot", MFD_CLOEXEC)) {
    for (size_t at = 0; fd_ >= 0 && at < text.size();) {
      const ssize_t put = ::write(fd_, text.data() + at, text.size() - at);
      if (put < 0 && errno != EINTR) break;
      at += put > 0 ? static_cast<size_t>(put) : 0;
      whole_ = at == text.size();
    }
    whole_ = whole_ || text.empty();
    if (fd_ >= 0) whole_ = whole_ && ::lseek(fd_, 0, SEEK_SET) == 0;
  }
  ~Scratch() {
    if (fd_ >= 0) ::close(fd_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  bool ok() const { return fd_ >= 0 && whole_; }
  int fd() const { return fd_; }
  std::string text() const {
    std::array<char, 4096> head{};
    const ssize_t got = ::pread(fd_, head.data(), head.size(), 0);
    return {head.data(), got > 0 ? static_cast<size_t>(got) : 0};
  }

 private:
  int fd_;
  bool whole_ = false;
};

/// Runs `words` with `input` on its standard input. Its last line of errors is the error's text.
Result<void> run_python(const std::vector<std::string>& words, const std::string& input) {
  const Scratch in(input), err("");
  if (!in.ok() || !err.ok())
    return no_plot(fmt::format("cannot get scratch memory: {}", std::strerror(errno)));
  posix_spawn_file_actions_t actions;
  if (::posix_spawn_file_actions_init(&actions) != 0)
    return no_plot("posix_spawn_file_actions_init");
  int error = ::posix_spawn_file_actions_adddup2(&actions, in.fd(), 0);
  if (error == 0) error = ::posix_spawn_file_actions_adddup2(&actions, err.fd(), 1);
  if (error == 0) error = ::posix_spawn_file_actions_adddup2(&actions, err.fd(), 2);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = 0;
  if (error == 0)
    error = ::posix_spawn(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  (void)::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return no_plot(fmt::format("{}: {}", words[0], std::strerror(error)));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return no_plot(fmt::format("waitpid: {}", std::strerror(errno)));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  std::string said = err.text();
  while (!said.empty() && said.back() == '\n') said.pop_back();
  if (const size_t line = said.rfind('\n'); line != std::string::npos) said.erase(0, line + 1);
  return no_plot(said.empty() ? fmt::format("{} failed", words[0]) : said);
}

}  // namespace

Result<Plotter> Plotter::find() {
  Plotter plotter;
  const std::optional<std::filesystem::path> module = find_module("simulate_plot.py");
  if (!module) return no_plot("cannot find simulate_plot.py of the Python package firn");
  const std::optional<std::filesystem::path> python = find_python();
  if (!python) return no_plot("cannot find a Python to draw with (FIRN_PYTHON names one)");
  plotter.module_ = *module;
  plotter.python_ = *python;
  if (Result<void> done = run_python({plotter.python_, plotter.module_, "--check"}, ""); !done)
    return no_plot(fmt::format("{} cannot draw: {}", plotter.python_.string(), done.error().text));
  return plotter;
}

Result<void> Plotter::draw(const std::string& data, const std::string& path) const {
  // Creates a new file before Python opens it: its owner's alone, and never a link.
  std::error_code none;
  if (std::filesystem::exists(std::filesystem::symlink_status(path, none)))
    return run_python({python_, module_, path}, data);
  Result<OutputFile> file = OutputFile::create(path, OutputFile::If::exists_fails);
  if (!file) return file.error();
  Result<void> done = run_python({python_, module_, path}, data);
  if (!done) (void)::unlink(path.c_str());
  return done;
}

}  // namespace firn::command
