#include "allocator/memory/host_trial.h"
#include "firn/ranked_mutex.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

extern "C" char** environ;

namespace firn {

namespace {

constexpr int wait_ms_most = 10'000;

std::string program_path() {
  static const int here = 0;
  Dl_info info{};
  if (!::dladdr(&here, &info) || !info.dli_fname) return {};
  const std::string own = info.dli_fname;
  const size_t slash = own.rfind('/');
  return (slash == std::string::npos ? std::string() : own.substr(0, slash + 1)) +
         host_trial_program;
}

/// Our environment without preloaded libraries: the driver alone is on trial.
std::vector<char*> environment() {
  std::vector<char*> out;
  for (char** each = environ; each && *each; ++each)
    if (std::strncmp(*each, "LD_PRELOAD=", 11) != 0) out.push_back(*each);
  out.push_back(nullptr);
  return out;
}

int64_t now_ms() {
  timespec now{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

enum class Answer { yes, no, died, too_late };

/// Reads the trial's answer: 'y' or 'n'. Not by its exit status, which a program that waits for all
/// its children would take away.
Answer read_answer(int file) {
  const int64_t until = now_ms() + wait_ms_most;
  for (;;) {
    const int64_t left = until - now_ms();
    pollfd ready{file, POLLIN, 0};
    const int found = left > 0 ? ::poll(&ready, 1, static_cast<int>(left)) : 0;
    if (found == 0) return Answer::too_late;
    if (found < 0 && errno == EINTR) continue;
    char word = 0;
    const ssize_t got = ::read(file, &word, 1);
    if (got < 0 && errno == EINTR) continue;
    return got != 1 ? Answer::died : word == 'y' ? Answer::yes : Answer::no;
  }
}

Result<void> refuse(const std::string& why) {
  return make_error(Code::not_supported, 0,
                    "host memory cannot be used at device addresses here: " + why);
}

Result<void> run_trial(const std::string& library, int node) {
  const std::string program = program_path(), number = std::to_string(node);
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0)
    return refuse(fmt::format("cannot create a pipe for the trial: {}", std::strerror(errno)));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  for (int file : {STDIN_FILENO, STDERR_FILENO})
    ::posix_spawn_file_actions_addopen(&actions, file, "/dev/null", O_RDWR, 0);
  ::posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
  const char* arguments[] = {program.c_str(), library.c_str(), number.c_str(), nullptr};
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, program.c_str(), &actions, nullptr,
                                   const_cast<char**>(arguments), environment().data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  if (failed != 0) {
    ::close(pipe[0]);
    return refuse(fmt::format("cannot start {}, which tries it in a separate process: {}", program,
                              std::strerror(failed)));
  }
  const Answer answer = read_answer(pipe[0]);
  ::close(pipe[0]);
  if (answer == Answer::too_late) (void)::kill(child, SIGKILL);
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {}
  switch (answer) {
    case Answer::yes: return {};
    case Answer::no: return refuse(fmt::format("the driver refuses memory of NUMA node {}", node));
    case Answer::died:
      return refuse(fmt::format("the driver crashed the trial process on NUMA node {}", node));
    default:
      return refuse(fmt::format("the trial took more than {} s", wait_ms_most / 1000));
  }
}

}  // namespace

static std::atomic<bool> apart{false};
void try_host_apart() { apart.store(true, std::memory_order_release); }

namespace {
using Asked = std::pair<std::string, int>;  // library, node
RankedMutex<Rank::host_trial> trial_mutex;
RankedCondition trial_over;
/// Null: the trial runs. Never destroyed: threads ask until the process's end.
std::map<Asked, std::optional<Result<void>>>& answers() {
  static auto& answers = *new std::map<Asked, std::optional<Result<void>>>;
  return answers;
}
}  // namespace

bool host_trial_known(const std::string& library, int node) {
  if (!apart.load(std::memory_order_acquire)) return true;
  std::lock_guard lock(trial_mutex);
  const auto known = answers().find({library, node});
  return known != answers().end() && known->second;
}

Result<void> try_host_memory(const std::string& library, int node) {
  if (!apart.load(std::memory_order_acquire)) return {};
  std::unique_lock lock(trial_mutex);
  for (;;) {
    const auto [known, first] = answers().try_emplace({library, node});
    if (known->second) return *known->second;
    if (!first) {
      trial_over.wait(lock);
      continue;
    }
    lock.unlock();
    std::optional<Result<void>> answer;
    try {
      answer = run_trial(library, node);
    } catch (const std::bad_alloc&) {  // the next one tries
    }
    lock.lock();
    if (answer)
      known->second = answer;
    else
      answers().erase(known);
    trial_over.notify_all();
    if (!answer) throw std::bad_alloc();
  }
}

}  // namespace firn
