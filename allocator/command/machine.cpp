// Locks: none.
#include "allocator/command/machine.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "allocator/runtime/machine_memory.h"
#include "firn/saturating.h"

namespace firn::command {
namespace {

std::string first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

uint64_t number(std::string_view text, uint64_t otherwise) {
  const size_t first = text.find_first_of("0123456789");
  if (first == std::string_view::npos) return otherwise;
  uint64_t value = 0;
  const auto result = std::from_chars(text.data() + first, text.data() + text.size(), value);
  return result.ec == std::errc() ? value : otherwise;
}

// The chosen word of "always [madvise] never".
std::string chosen(const std::string& line) {
  const size_t close = line.find(']');
  if (close == std::string::npos) return {};
  const size_t open = line.rfind('[', close);
  if (open == std::string::npos) return {};
  return line.substr(open + 1, close - open - 1);
}

uint64_t soft_limit(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return UINT64_MAX;
  return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

bool may_lock_memory(const std::string& root) {
  std::ifstream in(root + "/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("CapEff:")) continue;
    uint64_t bits = 0;
    const size_t first = line.find_first_not_of(" \t", 7);
    if (first == std::string::npos) return false;
    std::from_chars(line.data() + first, line.data() + line.size(), bits, 16);
    return (bits >> CAP_IPC_LOCK & 1) != 0;
  }
  return false;
}

}  // namespace

MachineReport examine_machine(const std::string& root) {
  MachineReport report;
  uint64_t pages = 0, pages_free = 0, page_bytes = 0;
  std::ifstream in(root + "/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    const auto take = [&](const char* name, uint64_t& to, uint64_t unit) {
      if (line.starts_with(name))
        to = saturating_multiply(number(std::string_view(line).substr(line.find(':')), 0), unit);
    };
    take("MemTotal:", report.memory_bytes, 1024);
    take("MemAvailable:", report.available_bytes, 1024);
    take("HugePages_Total:", pages, 1);
    take("HugePages_Free:", pages_free, 1);
    take("Hugepagesize:", page_bytes, 1024);
  }
  report.hugetlb_bytes = saturating_multiply(pages, page_bytes);
  report.hugetlb_free_bytes = saturating_multiply(std::min(pages, pages_free), page_bytes);
  report.cgroup_bytes = cgroup_memory().limit;
  report.memlock_bytes = soft_limit(RLIMIT_MEMLOCK);
  report.file_size_bytes = soft_limit(RLIMIT_FSIZE);
  report.memlock_ignored = may_lock_memory(root);
  report.transparent = chosen(first_line(root + "/sys/kernel/mm/transparent_hugepage/enabled"));
  report.map_count_max = number(first_line(root + "/proc/sys/vm/max_map_count"), 0);
  utsname names{};
  if (::uname(&names) == 0) report.kernel = names.release;
  return report;
}

}  // namespace firn::command
