#include "firn/topology.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

namespace firn {

namespace {

namespace fs = std::filesystem;

constexpr int devices_in_devices_most = 8;  // a partition of a RAID of encrypted ...

/// Nothing if the device does not say; -1 if it says that it is near no node.
std::optional<int> numa_node(const fs::path& device) {
  std::ifstream in(device / "numa_node");
  int node = 0;
  if (in >> node) return std::max(node, -1);
  return std::nullopt;
}

/// The node of the nearest ancestor that names one.
int node_above(fs::path device) {
  for (; device.has_relative_path(); device = device.parent_path())
    if (std::optional<int> node = numa_node(device)) return *node;
  return -1;
}

int node_of(const fs::path& disk, int depth) {
  std::error_code error;
  std::optional<int> common;
  if (depth > 0)
    for (const fs::directory_entry& part : fs::directory_iterator(disk / "slaves", error)) {
      const fs::path device = fs::canonical(part.path(), error);
      const int node = error ? -1 : node_of(device, depth - 1);
      if (common && *common != node) return -1;
      common = node;
    }
  return common ? *common : node_above(disk);
}

}  // namespace

std::string disk_of(const std::string& path, const std::string& sys) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  const std::string numbers =
      std::to_string(major(status.st_dev)) + ":" + std::to_string(minor(status.st_dev));
  std::error_code error;
  fs::path device = fs::canonical(fs::path(sys) / "dev/block" / numbers, error);
  if (error) return {};
  if (fs::exists(device / "partition", error)) device = device.parent_path();
  return device.string();
}

int disk_node(const std::string& disk) {
  return disk.empty() ? -1 : node_of(disk, devices_in_devices_most);
}

int pci_node(const std::string& id, const std::string& sys) {
  std::string name = id;
  std::transform(name.begin(), name.end(), name.begin(), [](char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  // The driver may write the domain with eight digits, sysfs does with four.
  if (const size_t colon = name.find(':'); colon == 8 && name.starts_with("0000"))
    name = name.substr(4);
  return numa_node(fs::path(sys) / "bus/pci/devices" / name).value_or(-1);
}

unsigned node_distance(int from, int to, const std::string& sys) {
  if (from < 0 || to < 0) return 0;
  std::ifstream in(fs::path(sys) / "devices/system/node" / ("node" + std::to_string(from)) /
                   "distance");
  // One number for each node that is there; nodes without gaps in their numbers are the rule.
  unsigned distance = 0;
  for (int node = 0; node <= to; ++node)
    if (!(in >> distance)) return 0;
  return distance;
}

}  // namespace firn
