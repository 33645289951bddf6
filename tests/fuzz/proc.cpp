// What the kernel's files say of the machine and of processes. An input: below lines "== NAME" the
// files' texts (names in the code below).
//
// Beyond no crash: groups are the mount point or below it, each inside the next; what is left is at
// most the limit; numbers are the ones that a plain scan here finds; a pressure is a percentage; a
// node is one that is there and may be used.
#include <cmath>

#include "allocator/command/machine.h"
#include "allocator/memory/exported_identity.h"
#include "allocator/memory/host_nodes.h"
#include "allocator/runtime/machine_memory.h"
#include "firn/topology.h"
#include "tests/fuzz/fuzz.h"

using namespace firn;

namespace {

using Texts = std::map<std::string, std::string>;

const fuzz::Folder& folder() {
  static fuzz::Folder made;
  return made;
}

void check_groups(Texts& texts) {
  int version = 3;
  std::string inner;
  for (const MemoryGroup& group : memory_groups(texts["cgroup"], texts["mountinfo"])) {
    FUZZ_CHECK(group.version == 1 || group.version == 2, "a version");
    FUZZ_CHECK(group.version <= version, "versions out of order");
    FUZZ_CHECK(!group.folder.empty(), "no folder");
    if (group.version == version)
      FUZZ_CHECK(inner.size() > group.folder.size() && inner.starts_with(group.folder),
                 "%s is not around %s", group.folder.c_str(), inner.c_str());
    version = group.version;
    inner = group.folder;
  }
}

void check_limits(Texts& texts) {
  static const std::string group = folder().make("group");
  for (const char* name : {"memory.max", "memory.high", "memory.current", "memory.stat",
                           "memory.limit_in_bytes", "memory.usage_in_bytes"})
    folder().write(std::string("group/") + name, texts[name]);
  for (const int version : {1, 2}) {
    const GroupMemory memory = read_group({group, version});
    FUZZ_CHECK(memory.left <= memory.limit, "more is left than may be had");
    FUZZ_CHECK(memory.limit != UINT64_MAX || memory.left == UINT64_MAX, "no limit, yet it binds");
  }
}

/// "KEY: N kB" at the beginning of a line. Only for texts of such lines.
uint64_t plain_kib(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (!line.starts_with(key)) continue;
    return std::strtoull(std::string(line.substr(key.size())).c_str(), nullptr, 10);
  }
  return 0;
}

void check_meminfo(Texts& texts) {
  const std::string& text = texts["meminfo"];
  const uint64_t bytes = meminfo_bytes(text, "MemTotal:");
  // As the kernel writes it: lines of a name, a number that 52 bits hold, and kB.
  bool plain = !text.empty() && text.ends_with('\n');
  for (std::string_view left = text; plain && !left.empty();) {
    const std::string line(left.substr(0, left.find('\n')));
    left.remove_prefix(line.size() + 1);
    char name[64], unit[8];
    unsigned long long number = 0;
    int end = 0;
    plain = line.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz:_() "
                                   "0123456789") == std::string::npos &&
            std::sscanf(line.c_str(), "%63[^: ]: %15llu %7s%n", name, &number, unit, &end) == 3 &&
            static_cast<size_t>(end) == line.size() && std::strcmp(unit, "kB") == 0 &&
            number < uint64_t{1} << 52;
  }
  if (plain)
    FUZZ_CHECK(bytes == plain_kib(text, "MemTotal:") << 10, "%llu bytes",
               static_cast<unsigned long long>(bytes));
  const double pressure = full_pressure(texts["pressure"]);
  FUZZ_CHECK(std::isfinite(pressure) && pressure >= 0 && pressure <= 100, "pressure %f", pressure);
}

void check_machine(Texts& texts) {
  static const std::string root = [] {
    folder().make("root/proc/self");
    folder().make("root/proc/sys/vm");
    folder().make("root/sys/kernel/mm/transparent_hugepage");
    return folder().path() + "/root";
  }();
  folder().write("root/proc/meminfo", texts["meminfo"]);
  folder().write("root/proc/self/status", texts["status"]);
  folder().write("root/proc/sys/vm/max_map_count", texts["max_map_count"]);
  folder().write("root/sys/kernel/mm/transparent_hugepage/enabled", texts["transparent"]);
  const command::MachineReport report = command::examine_machine(root);
  FUZZ_CHECK(report.transparent.find_first_of("[]\n") == std::string::npos, "transparent %s",
             report.transparent.c_str());
  FUZZ_CHECK(report.hugetlb_free_bytes <= report.hugetlb_bytes, "more huge pages are free");
}

void check_nodes(Texts& texts) {
  static const NodeFiles files{folder().make("nodes/devices/system/node"),
                               folder().path() + "/nodes/status"};
  folder().write("nodes/status", texts["status"]);
  for (const char* node : {"node0", "node3"}) {
    const std::string name = std::string("nodes/devices/system/node/") + node;
    folder().make(name);
    folder().write(name + "/cpulist", texts[std::string(node) + ".cpulist"]);
    folder().write(name + "/meminfo", texts[std::string(node) + ".meminfo"]);
    folder().write(name + "/distance", texts[std::string(node) + ".distance"]);
  }
  for (const int near : {-1, 0, 3, 7}) {
    const int node = host_node(near, files);
    FUZZ_CHECK(node == -1 || node == 0 || node == 3, "node %d", node);
  }
  (void)node_distance(0, 3, folder().path() + "/nodes");
  folder().make("nodes/bus/pci/devices/0000:01:00.0");
  folder().write("nodes/bus/pci/devices/0000:01:00.0/numa_node", texts["numa_node"]);
  FUZZ_CHECK(pci_node("00000000:01:00.0", folder().path() + "/nodes") >= -1, "a device's node");
}

/// Fields that blanks part, from behind the last parenthesis on.
void check_start(const std::string& stat) {
  uint64_t expected = 0;
  if (size_t at = stat.rfind(')'); at != std::string::npos) {
    int field = 2;
    for (; at < stat.size() && field < 22; ++at) field += stat[at] == ' ';
    if (field == 22 && at < stat.size() && stat[at] >= '0' && stat[at] <= '9') {
      errno = 0;
      expected = std::strtoull(stat.c_str() + at, nullptr, 10);
      if (errno == ERANGE) expected = 0;
    }
  }
  FUZZ_CHECK(start_ticks(stat) == expected, "%llu, not %llu",
             static_cast<unsigned long long>(start_ticks(stat)),
             static_cast<unsigned long long>(expected));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Texts texts = fuzz::texts_of(data, size);
  check_groups(texts);
  check_limits(texts);
  check_meminfo(texts);
  check_machine(texts);
  check_nodes(texts);
  check_start(texts["stat"]);
  return 0;
}
