// Descriptors and threads that a process has, and which of them it should not have at its end.
#pragma once

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include <fmt/format.h>

#include "tests/faults/interpose.h"
#include "tests/faults/process_report.h"

namespace firn::faults {

/// A name without what differs from run to run.
inline std::string without_digits(std::string text, const std::string& folder) {
  if (const size_t at = text.find(folder); !folder.empty() && at != std::string::npos)
    text.erase(at, folder.size());
  std::erase_if(text, [](char each) { return each >= '0' && each <= '9'; });
  return text;
}

/// Descriptors and threads of this process, but for the workers of the software GPU (which have the
/// names of the threads that started them, and take just the signals that kernels raise).
inline std::multiset<std::string> held_now(const std::string& folder) {
  const Uncounted quiet;  // (some of the C++ library's functions are in libfirn, too)
  std::multiset<std::string> held;
  std::error_code gone;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd", gone)) {
    const auto link = std::filesystem::read_symlink(each.path(), gone);
    if (!gone && link.string().find("/proc/") != 0)
      held.insert("a descriptor: " + without_digits(link.string(), folder));
  }
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    std::ifstream status(each.path() / "status");
    std::string name;
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("Name:\t")) name = line.substr(6);
      if (!line.starts_with("SigBlk:\t")) continue;
      uint64_t taken = ~std::stoull(line.substr(8), nullptr, 16);
      for (const int signal : {SIGKILL, SIGSTOP, SIGSYS, 32, 33}) taken &= ~(1ull << (signal - 1));
      const bool kernels = name.starts_with("iou-");  // of the operating system
      if (!kernels && taken != (1u << 3 | 1u << 5 | 1u << 6 | 1u << 7 | 1u << 10))
        held.insert("a thread: " + without_digits(name, folder));
    }
  }
  return held;
}

/// Whether one is there that ends with firn_shutdown(), a moment after it.
inline bool still_ending(const std::multiset<std::string>& held) {
  return held.contains("a thread: firn-pump-") || held.contains("a thread: firn-control");
}

inline constexpr const char* ring_itself = "a descriptor: anon_inode:[io_uring]";
inline constexpr const char* spill_folder = "a descriptor: /spill";

/// Held at the end, and by no process without a failure then. (One that begins with io_uring may
/// end with threads.)
inline std::string held_too_much() {
  const auto lines = [](const char* text) {
    std::map<std::string, unsigned> counts;
    std::string line;
    for (; *text; ++text) {
      if (*text != '\n') line += *text;
      else ++counts[line], line.clear();
    }
    return counts;
  };
  std::string more;
  for (const auto& [line, count] : lines(report->held)) {
    unsigned most = 0;
    for (const Report& each : usual) most = std::max(most, lines(each.held)[line]);
    // (A ring that cannot be registered is called by its number.)
    if (line == ring_itself) most += static_cast<unsigned>(failed() > 0);
    // (A directory's descriptor takes no mark of ours: where its fstat fails, too, nobody knows
    // whether the number is still ours, and it is not closed.)
    if (line == spill_folder) most += static_cast<unsigned>(failed(name_called("fstat")));
    if (count > most) more += fmt::format("\n  {} ({}, {} at most)", line, count, most);
  }
  return more;
}

}  // namespace firn::faults
