// What the stand-in costs a process that has nothing to do with CUDA: starts and reaps PROGRAM many
// times with nothing preloaded, with an empty library, and with libfirn_preload.so, in turns, and
// prints the medians. exec_cost EMPTY.so LIBFIRN_PRELOAD.so [ROUNDS [PROGRAM [ARGUMENT...]]]
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// The environment without LD_PRELOAD, and with the one given.
std::vector<std::string> environment_with(const std::string& preload) {
  std::vector<std::string> variables;
  for (char** each = environ; *each != nullptr; ++each)
    if (std::strncmp(*each, "LD_PRELOAD=", 11) != 0) variables.emplace_back(*each);
  if (!preload.empty()) variables.push_back("LD_PRELOAD=" + preload);
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  for (std::string& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

double start_us(std::vector<std::string>& command, std::vector<std::string>& environment) {
  const auto arguments = pointers(command), variables = pointers(environment);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  int status = 0;
  const auto begin = Clock::now();
  const int error =
      posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), variables.data());
  if (error != 0 || waitpid(child, &status, 0) != child || status != 0) {
    std::fprintf(stderr, "exec_cost: %s does not run: %s\n", arguments[0],
                 error != 0 ? std::strerror(error) : "its status is not 0");
    std::exit(1);
  }
  const auto end = Clock::now();
  posix_spawn_file_actions_destroy(&actions);
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int count, char** words) {
  if (count < 3) {
    std::fprintf(stderr, "usage: exec_cost EMPTY.so LIBFIRN_PRELOAD.so [ROUNDS [PROGRAM ...]]\n");
    return 2;
  }
  const long rounds = count > 3 ? std::max(1L, std::atol(words[3])) : 2000;
  std::vector<std::string> command;
  for (int i = 4; i < count; ++i) command.emplace_back(words[i]);
  if (command.empty()) command = {"/bin/true"};
  const char* const names[] = {"nothing preloaded", "an empty library", "libfirn_preload.so"};
  std::vector<std::string> environments[] = {environment_with(""), environment_with(words[1]),
                                             environment_with(words[2])};
  std::vector<double> times[3];
  for (auto& environment : environments) start_us(command, environment);
  for (long round = 0; round < rounds; ++round)
    for (size_t i = 0; i < 3; ++i) {
      const size_t which = (i + static_cast<size_t>(round)) % 3;
      times[which].push_back(start_us(command, environments[which]));
    }
  for (size_t i = 0; i < 3; ++i)
    std::printf("%-18s %7.1f us per start (median of %ld)\n", names[i], median(times[i]), rounds);
  std::printf("beyond an empty library: %.1f us\n", median(times[2]) - median(times[1]));
  return 0;
}
