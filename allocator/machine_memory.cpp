#include "allocator/machine_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace firn {

namespace {
constexpr uint64_t host_share_least = 64u << 20;  // staging for eight pieces of the default size
}  // namespace

uint64_t cgroup_memory_bytes() {
  std::ifstream in("/proc/self/cgroup");
  uint64_t least = UINT64_MAX;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("0::/")) continue;  // version 2; version 1 is not looked at
    const std::filesystem::path root = "/sys/fs/cgroup";
    for (std::filesystem::path group = line.substr(3);; group = group.parent_path()) {
      std::ifstream limit(root / group.relative_path() / "memory.max");
      if (uint64_t bytes = 0; limit >> bytes) least = std::min(least, bytes);  // else "max"
      if (group == group.parent_path()) break;
    }
  }
  return least;
}

uint64_t available_memory_bytes() {
  std::ifstream info("/proc/meminfo");
  std::string key, unit;
  uint64_t kib = 0;
  while (info >> key >> kib >> unit)
    if (key == "MemAvailable:") return std::min(kib << 10, cgroup_memory_bytes());
  return 0;
}

uint64_t host_share_bytes(uint64_t available_bytes, unsigned ranks) {
  return std::max(available_bytes / 2 / std::max(ranks, 1u), host_share_least);
}

}  // namespace firn
