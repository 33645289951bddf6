// A job over Firn's C API and the software GPU that does what it is told, line by line on its
// standard input, and answers each with one line: "ok ...", "error STATUS ..." or "cannot ...". A
// wrong byte ends it at once, with status 9.
//
//   real_faults_job GPU_LIBRARY FOLDER MIB CONF [CALL...] [/FILE]
//       FOLDER: the spill directory, MIB: of a block, CALL: system calls that are forbidden to it,
//       FILE: it opens this file before anything else
//
//   make N          blocks, each written          drop N      frees the newest
//   churn SECONDS   any block, read or written    verify      reads all
//   act WHAT ...    see acts.cpp; I/O is in flight then      plainly WHAT ...    the same, at rest
//   stats           Firn's, as they are           end         frees all and ends; quit: only ends
//                                                 leave       ends as if all had been well
#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <sstream>

#include "tests/real_faults/acts.h"
#include "tests/real_faults/blocks.h"

namespace firn::real_faults {
namespace {

constexpr unsigned seconds_most = 180;  // whatever it waits for: SIGALRM

/// Takes little memory: there may be none.
std::string words_of(const Outcome& outcome, size_t blocks) {
  static char text[4096];
  size_t used = 0;
  const auto add = [&](const char* format, auto... values) {
    const int more = std::snprintf(text + used, sizeof(text) - used, format, values...);
    used = std::min(used + static_cast<size_t>(std::max(more, 0)), sizeof(text) - 1);
  };
  if (outcome.errors == 0)
    add("ok");
  else
    add("error %d", outcome.status);
  add(" steps=%u errors=%u lost=%u blocks=%zu", outcome.steps, outcome.errors, outcome.lost,
      blocks);
  if (outcome.errors > 0) add(" first=%s", outcome.first);
  return text;
}

class Job {
 public:
  Job(Gpu& gpu, std::string folder, size_t bytes)
      : gpu_(gpu), folder_(std::move(folder)), blocks_(gpu, bytes) {}

  std::string does(const std::vector<std::string>& words) {
    const std::string& what = words[0];
    const double number = words.size() > 1 ? std::atof(words[1].c_str()) : 0;
    if (what == "stats") return stats();
    Outcome outcome;
    if (what == "make") {
      blocks_.make(static_cast<size_t>(number), outcome);
    } else if (what == "drop") {
      blocks_.drop(static_cast<size_t>(number), outcome);
    } else if (what == "churn") {
      churn(number, outcome);
    } else if (what == "verify") {
      blocks_.verify(outcome);
    } else if (what == "act" || what == "plainly") {
      const std::string flying = what == "act" ? fly() : in_flight(folder_);
      return act({words.begin() + 1, words.end()}, flying);
    } else {
      return "cannot do " + what;
    }
    (void)gpu_.synchronize();
    check();
    errors_ |= outcome.errors > 0;
    return words_of(outcome, blocks_.count());
  }

  /// Statuses as of a program that has its own: 3 where anything was an error.
  [[noreturn]] void end(bool all) {
    Outcome outcome;
    if (all) blocks_.drop(blocks_.count(), outcome);
    (void)gpu_.synchronize();
    check();
    std::printf("%s\n", words_of(outcome, blocks_.count()).c_str());
    std::fflush(stdout);
    std::exit(errors_ ? 3 : 0);
  }

 private:
  void churn(double seconds, Outcome& outcome) {
    using Time = std::chrono::steady_clock;
    const auto end = Time::now() + std::chrono::duration<double>(seconds);
    while (Time::now() < end) {
      blocks_.step(outcome);
      check();
    }
  }
  /// Until the kernel has requests of ours under way, for a moment at most.
  std::string fly() {
    std::string flying;
    for (int i = 0; i < 20; ++i) {
      blocks_.stir();
      for (int looks = 0; looks < 100; ++looks)
        if (flying = in_flight(folder_); flying.empty() || flying != "0") return flying;
    }
    return flying;
  }
  std::string stats() const {
    std::string text(1u << 16, '\0');
    text.resize(firn_stats(text.data(), text.size()));
    for (char& each : text)
      if (each == '\n') each = ' ';
    return "ok " + text;
  }
  void check() const {
    if (const uint64_t count = wrong_words) {
      std::printf("WRONG %llu words\n", static_cast<unsigned long long>(count));
      std::fflush(stdout);
      std::_Exit(9);
    }
  }

  Gpu& gpu_;
  const std::string folder_;
  Blocks blocks_;
  bool errors_ = false;
};

int live(char** words) {
  ::alarm(seconds_most);
  void* ready[1];
  (void)::backtrace(ready, 1);  // (it loads a library when it is called first)
  (void)std::signal(SIGABRT, [](int) {  // whose it is
    void* stack[40];
    ::backtrace_symbols_fd(stack, ::backtrace(stack, 40), STDERR_FILENO);
    (void)std::signal(SIGABRT, SIG_DFL);
  });
  std::vector<std::string> forbidden{"forbid"};
  for (char** call = words + 5; *call; ++call) {
    if (**call != '/') {
      forbidden.emplace_back(*call);
    } else if (const std::string opened = act({"open", *call}, ""); opened != "ok number=2") {
      give_up(("open its file by that number: " + opened).c_str());
    }
  }
  if (forbidden.size() > 1 && act(forbidden, "") != "ok") give_up("forbid system calls");
  const int status = firn_init((std::string("firn_driver:") + words[1] + "," + words[4]).c_str());
  if (status != FIRN_OK) {
    std::printf("error %d first=firn_init: %s\n", status, firn_error());
    return 3;
  }
  Gpu gpu(words[1]);
  if (!gpu.well()) {
    std::printf("error %d first=no GPU\n", FIRN_DRIVER);
    return 3;
  }
  Job job(gpu, words[2], static_cast<size_t>(std::atoi(words[3])) << 20);
  std::printf("ok\n");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    const std::vector<std::string> told{std::istream_iterator<std::string>(in), {}};
    if (told.empty()) continue;
    if (told[0] == "end" || told[0] == "quit") job.end(told[0] == "end");
    if (told[0] == "leave") std::exit(0);
    std::printf("%s\n", job.does(told).c_str());
    std::fflush(stdout);
  }
  job.end(false);
}

}  // namespace
}  // namespace firn::real_faults

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "real_faults_job GPU_LIBRARY FOLDER MIB CONF [CALL...] [/FILE]\n");
    return 2;
  }
  return firn::real_faults::live(argv);
}
