#include "allocator/runtime/machine_memory.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "firn/saturating.h"

namespace firn {

namespace {
namespace fs = std::filesystem;

constexpr uint64_t host_share_least = 64u << 20;  // staging for eight pieces of the default size
constexpr uint64_t unlimited_from = uint64_t{1} << 62;  // version 1 has no word for "no limit"
constexpr uint64_t kept_part = 8, kept_least = 64u << 20, kept_most = uint64_t{4} << 30;

/// Reads as much of the file as it can. A removed group's files can still be opened, but reading
/// them fails: an iterator over the buffer would throw.
std::string read_text(const std::string& name) {
  std::ifstream in(name, std::ios::binary);
  std::ostringstream words;
  words << in.rdbuf();
  return words.str();
}

/// Cuts the part up to `end` off `text`, and `end` too.
std::string_view cut(std::string_view& text, char end) {
  const size_t at = std::min(text.find(end), text.size());
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return part;
}

/// `fallback` where it is no number ("max").
uint64_t number(std::string_view text, uint64_t fallback) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() ? value : fallback;
}

/// The number after `key` and a blank at the beginning of a line.
uint64_t field(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    std::string_view line = cut(text, '\n');
    if (cut(line, ' ') == key) return number(line, 0);
  }
  return 0;
}

bool lists(std::string_view words, std::string_view word) {
  while (!words.empty())
    if (cut(words, ',') == word) return true;
  return false;
}

/// Mount points in mountinfo have blanks, and what would end a line, in octal.
std::string without_octal(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* at = text.data() + i;
    if (*at == '\\' && i + 4 <= text.size() &&
        std::from_chars(at + 1, at + 4, value, 8).ptr == at + 4 && value < 256) {
      out += static_cast<char>(value);
      i += 3;
    } else {
      out += *at;
    }
  }
  return out;
}

struct Hierarchy {
  std::string root, point;  // which group of it is mounted, and where
};

/// Where version `version`'s memory groups are mounted; empty: nowhere.
Hierarchy hierarchy(std::string_view mountinfo, int version) {
  while (!mountinfo.empty()) {
    // "36 35 98:0 /root /point options optional... - type source superoptions"
    std::string_view line = cut(mountinfo, '\n');
    std::string_view words[5];
    for (std::string_view& word : words) word = cut(line, ' ');
    const size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    line.remove_prefix(dash + 3);
    const std::string_view type = cut(line, ' ');
    (void)cut(line, ' ');
    if (version == 2 ? type == "cgroup2" : type == "cgroup" && lists(line, "memory"))
      return {without_octal(words[3]), without_octal(words[4])};
  }
  return {};
}

/// This process's path in version `version`'s hierarchy; empty: it has none.
std::string path_in(std::string_view cgroup, int version) {
  while (!cgroup.empty()) {
    std::string_view line = cut(cgroup, '\n');
    const std::string_view id = cut(line, ':'), controllers = cut(line, ':');
    if (version == 2 ? id == "0" && controllers.empty() : lists(controllers, "memory"))
      return std::string(line);
  }
  return {};
}

}  // namespace

uint64_t meminfo_bytes(std::string_view meminfo, std::string_view wanted) {
  while (!meminfo.empty()) {
    std::string_view line = cut(meminfo, '\n');
    if (!line.starts_with(wanted)) continue;
    line.remove_prefix(wanted.size());
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    return saturating_multiply(number(line, 0), 1024);
  }
  return 0;
}

double full_pressure(std::string_view text) {
  constexpr std::string_view key = "full avg10=";
  const size_t full = text.find(key);
  if (full == std::string_view::npos) return 0;
  double percent = 0;
  const char* begin = text.data() + full + key.size();
  const bool told = std::from_chars(begin, text.data() + text.size(), percent).ec == std::errc();
  return told && percent >= 0 && percent <= 100 ? percent : 0;
}

std::vector<MemoryGroup> memory_groups(std::string_view cgroup, std::string_view mountinfo) {
  std::vector<MemoryGroup> groups;
  for (const int version : {2, 1}) {
    const Hierarchy mounted = hierarchy(mountinfo, version);
    std::string path = path_in(cgroup, version);
    if (mounted.point.empty() || path.empty()) continue;
    // A container sees its own group at the mount point, by whichever path.
    if (mounted.root != "/" && path.starts_with(mounted.root)) path.erase(0, mounted.root.size());
    const fs::path point = mounted.point;
    fs::path inner = fs::path(path).relative_path().lexically_normal();
    if (inner.begin() != inner.end() && *inner.begin() == "..") inner.clear();
    for (fs::path each = inner;; each = each.parent_path()) {
      const MemoryGroup group{each.empty() ? point.string() : (point / each).string(), version};
      if (groups.empty() || !(groups.back() == group)) groups.push_back(group);
      if (each.empty()) break;
    }
  }
  return groups;
}

GroupMemory read_group(const MemoryGroup& group) {
  const auto file = [&](const char* name) { return read_text(group.folder + "/" + name); };
  const bool second = group.version == 2;
  GroupMemory memory;
  if (second) {
    memory.limit = std::min(number(file("memory.max"), UINT64_MAX),
                            number(file("memory.high"), UINT64_MAX));
  } else {
    memory.limit = number(file("memory.limit_in_bytes"), UINT64_MAX);
  }
  if (memory.limit >= unlimited_from) return {};
  const uint64_t used = number(file(second ? "memory.current" : "memory.usage_in_bytes"), 0);
  const uint64_t files =
      field(file("memory.stat"), second ? "inactive_file" : "total_inactive_file");
  const uint64_t held = used - std::min(used, files);
  memory.left = memory.limit - std::min(memory.limit, held);
  return memory;
}

GroupMemory cgroup_memory() {
  GroupMemory least;
  for (const MemoryGroup& group :
       memory_groups(read_text("/proc/self/cgroup"), read_text("/proc/self/mountinfo"))) {
    const GroupMemory memory = read_group(group);
    least = {std::min(least.limit, memory.limit), std::min(least.left, memory.left)};
  }
  return least;
}

uint64_t available_memory_bytes() {
  return std::min(meminfo_bytes(read_text("/proc/meminfo"), "MemAvailable:"), cgroup_memory().left);
}

uint64_t machine_memory_bytes() {
  return std::min(meminfo_bytes(read_text("/proc/meminfo"), "MemTotal:"), cgroup_memory().limit);
}

double memory_pressure() {
  std::string text;
  for (const MemoryGroup& group :
       memory_groups(read_text("/proc/self/cgroup"), read_text("/proc/self/mountinfo"))) {
    if (group.version == 2) text = read_text(group.folder + "/memory.pressure");
    if (!text.empty()) break;
  }
  if (text.empty()) text = read_text("/proc/pressure/memory");
  return full_pressure(text);
}

uint64_t host_share_bytes(uint64_t available_bytes, unsigned ranks) {
  return std::max(available_bytes / 2 / std::max(ranks, 1u), host_share_least);
}

uint64_t host_kept_bytes(uint64_t machine_bytes) {
  return std::clamp(machine_bytes / kept_part, kept_least, kept_most);
}

}  // namespace firn
