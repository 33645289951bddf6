#include "allocator/runtime/rank_dirs.h"

#include "firn/topology.h"

namespace firn {

namespace {

/// -1: not known.
int device_node(const Driver& driver, int ordinal) {
  char id[32] = {};
  CUdevice device = 0;
  if (driver.device_get(&device, ordinal) != CUDA_SUCCESS ||
      driver.device_get_pci_bus_id(id, sizeof id, device) != CUDA_SUCCESS)
    return -1;
  return pci_node(id);
}

}  // namespace

Distances rank_distances(unsigned ranks, const std::vector<std::string>& dirs,
                         const Driver& driver) {
  int devices = 0;
  if (driver.software || driver.init(0) != CUDA_SUCCESS ||
      driver.device_get_count(&devices) != CUDA_SUCCESS || devices < static_cast<int>(ranks))
    return {};
  std::vector<int> disk_nodes;
  for (const std::string& dir : dirs) disk_nodes.push_back(disk_node(disk_of(dir)));
  Distances distances;
  for (unsigned rank = 0; rank < ranks; ++rank) {
    const int node = device_node(driver, static_cast<int>(rank));
    std::vector<unsigned>& row = distances.emplace_back();
    for (const int disk : disk_nodes) {
      row.push_back(node_distance(node, disk));
      // One unknown distance beside known ones would count as nearest of all, or as farthest.
      if (row.back() == 0) return {};
    }
  }
  return distances;
}

}  // namespace firn
