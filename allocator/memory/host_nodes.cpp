#include "allocator/memory/host_nodes.h"

#include <dirent.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

namespace firn {

namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream words;
  words << file.rdbuf();
  return words.str();
}

/// "0-1,4": is `number` in it?
bool in_list(const std::string& list, int number) {
  const char* at = list.c_str();
  while (*at) {
    char* end = nullptr;
    const long first = std::strtol(at, &end, 10);
    if (end == at) break;
    long last = first;
    if (*end == '-') last = std::strtol(end + 1, &end, 10);
    if (number >= first && number <= last) return true;
    at = *end == ',' ? end + 1 : "";
  }
  return false;
}

/// The nodes that this process may use; nullopt: the kernel does not say.
std::optional<std::string> allowed_nodes(const std::string& status) {
  const std::string words = text_of(status), key = "Mems_allowed_list:";
  const size_t at = words.find(key);
  if (at == std::string::npos) return std::nullopt;
  const std::string line = words.substr(at + key.size(), words.find('\n', at) - at - key.size());
  return line.substr(std::min(line.find_first_not_of(" \t"), line.size()));
}

/// "Node 0 MemTotal:  131072 kB".
bool has_memory(const std::string& folder) {
  const std::string words = text_of(folder + "/meminfo"), key = "MemTotal:";
  const size_t at = words.find(key);
  return at != std::string::npos && std::strtoull(words.c_str() + at + key.size(), nullptr, 10) > 0;
}

bool has_processors(const std::string& folder) {
  return text_of(folder + "/cpulist").find_first_of("0123456789") != std::string::npos;
}

}  // namespace

int host_node(int near, const NodeFiles& files) {
  const std::optional<std::string> allowed = allowed_nodes(files.status);
  bool any = false;
  std::vector<std::pair<int, int>> usable;  // penalty, number
  // (The standard's iterator ends the process where it has no memory for an entry's name.)
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(files.nodes.c_str()), ::closedir);
  while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr) {
    const std::string name = entry->d_name, path = files.nodes + "/" + name;
    if (!name.starts_with("node") || name.find_first_of("0123456789") != 4) continue;
    any = true;
    const int number = std::atoi(name.c_str() + 4);
    if ((allowed && !in_list(*allowed, number)) || !has_memory(path)) continue;
    const int against = (has_processors(path) ? 0 : 2) + (number == near ? 0 : 1);
    usable.emplace_back(against, number);
  }
  if (!any) return std::max(near, 0);
  return usable.empty() ? -1 : std::min_element(usable.begin(), usable.end())->second;
}

}  // namespace firn
