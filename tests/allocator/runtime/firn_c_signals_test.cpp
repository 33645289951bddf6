// A signal is for the program's own threads: none of Firn's takes one.
#include "tests/allocator/runtime/firn_c_fixture.h"

#include <csignal>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>

using namespace firn::test_c;

namespace {

/// The threads of this process whose names begin so, and which signals each of them takes; without
/// the numbers at their ends ("firn-io", of "firn-io-0").
std::map<std::string, std::string> signals_taken(const std::string& begin) {
  std::map<std::string, std::string> taken;
  std::error_code gone;  // a thread that ended meanwhile
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    std::ifstream status(task.path() / "status");
    std::string line, name;
    for (uint64_t blocked; std::getline(status, line);) {
      if (line.starts_with("Name:\t")) name = line.substr(6);
      if (!line.starts_with("SigBlk:\t") || !name.starts_with(begin)) continue;
      blocked = std::stoull(line.substr(8), nullptr, 16);
      name.resize(name.find_last_not_of("-0123456789") + 1);
      std::string of;
      for (int signal = 1; signal < 65; ++signal)
        if (signal != SIGKILL && signal != SIGSTOP && signal != 32 && signal != 33 &&  // glibc's
            !(blocked >> (signal - 1) & 1))
          of += " " + std::to_string(signal);
      // (A worker of the software GPU's that one of ours started has its name: it takes what a
      // kernel raises, just these.)
      if (of != " 4 6 7 8 11") taken[name] += of;
    }
  }
  return taken;
}

/// Three times the budget, written and read, until `over`.
void spill_on(const std::atomic<bool>& over) {
  ASSERT_EQ(program().set_current(program().context), CUDA_SUCCESS);
  constexpr size_t bytes = 8u << 20;
  while (!over) {
    void* block[36] = {};
    for (void*& each : block) {
      ASSERT_EQ(firn_malloc(&each, bytes, 0, nullptr), FIRN_OK) << firn_error();
      ASSERT_EQ(firn_touch(&each, nullptr, 1, nullptr), FIRN_OK) << firn_error();
      run_kernel(program().fill, each, bytes, 3, nullptr);
    }
    for (void*& each : block) {
      ASSERT_EQ(firn_touch(&each, nullptr, 1, nullptr), FIRN_OK) << firn_error();
      run_kernel(program().verify, each, bytes, 3, nullptr);
    }
    firn_launched();
    for (void* each : block) ASSERT_EQ(firn_free(each, nullptr), FIRN_OK) << firn_error();
  }
  ASSERT_EQ(program().synchronize(), CUDA_SUCCESS);
}

}  // namespace

// A signal is for the program's own threads: one of ours that took it would run the program's
// handler, with our locks held. While blocks go out and come back all of our threads are looked at.
TEST_F(FirnC, no_thread_of_firns_takes_a_signal) {
  std::set<std::string> wanted = {"firn-pump", "firn-io", "firn-control", "firn-slow-work"};
  if (const char* more = std::getenv(more_words)) {
    const auto want = [&](const char* word, const char* name) {
      if (std::strstr(more, word)) wanted.insert(name);
    };
    want("firn_encrypt:1", "firn-cipher");
    want("firn_trace:", "firn-trace");
    want("firn_metrics:", "firn-metrics");
  }
  std::atomic<bool> over{false};
  std::thread spilling([&] { spill_on(over); });
  std::map<std::string, std::string> seen;
  using Time = std::chrono::steady_clock;
  const auto least = Time::now() + std::chrono::milliseconds(500);
  const auto most = Time::now() + std::chrono::seconds(20);
  const auto all_met = [&] {
    return std::all_of(wanted.begin(), wanted.end(),
                       [&](const std::string& name) { return seen.contains(name); });
  };
  while (Time::now() < most && (Time::now() < least || !all_met())) {
    for (const auto& [name, taken] : signals_taken("firn-")) seen[name] += taken;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  over = true;
  spilling.join();
  for (const std::string& name : wanted) EXPECT_TRUE(seen.contains(name)) << name << " is not met";
  std::string met;
  for (const auto& [name, taken] : seen) {
    met += " " + name;
    EXPECT_EQ(taken.substr(0, 200), "") << name << " takes these signals";
  }
  std::printf("threads that were met:%s\n", met.c_str());
  EXPECT_EQ(wrong.load(), 0u);
}

TEST_F(FirnC, nor_does_one_of_what_may_be_asked_for) {
  if (std::getenv(more_words)) GTEST_SKIP() << "within itself";
  std::string folder = (std::filesystem::temp_directory_path() / "firn-c-more-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string more = "firn_encrypt:1,firn_metrics:" + folder + "/metrics,firn_trace:" +
                           folder + "/trace";
  const std::string command =
      std::string(more_words) + "='" + more + "' '" +
      std::filesystem::read_symlink("/proc/self/exe").string() +
      "' --gtest_filter=FirnC.no_thread_of_firns_takes_a_signal";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  std::filesystem::remove_all(folder);
}
