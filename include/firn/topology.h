// Where disks and GPUs are in the machine, as sysfs says: which disk a directory is on, which NUMA
// node a device hangs on, how far two nodes are apart. Owns nothing; no locks. `sys` is for tests.
#pragma once

#include <string>

namespace firn {

/// The sysfs directory of the whole disk that holds `path` ("/sys/devices/.../nvme0n1"); empty
/// where sysfs does not tell (overlay, btrfs, network).
std::string disk_of(const std::string& path, const std::string& sys = "/sys");

/// The NUMA node of a disk (disk_of()); of a device made of several, the one that they share. -1:
/// not known.
int disk_node(const std::string& disk);

/// The NUMA node of a PCI device ("0000:3B:00.0", any case). -1: not known.
int pci_node(const std::string& id, const std::string& sys = "/sys");

/// The firmware's distance between two nodes (10: the same one); 0: not known.
unsigned node_distance(int from, int to, const std::string& sys = "/sys");

}  // namespace firn
