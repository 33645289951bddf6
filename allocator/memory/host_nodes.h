// Which of the machine's memory nodes a device's host memory should come from. Owns nothing; reads
// files of the kernel's. Locks: none.
#pragma once

#include <string>

namespace firn {

/// Where the kernel tells of nodes and of what this process may use.
struct NodeFiles {
  std::string nodes = "/sys/devices/system/node";  // node<N>/cpulist, node<N>/meminfo
  std::string status = "/proc/self/status";        // Mems_allowed_list
};

/// The node to take host memory from: `near` where it has memory that this process may use, and
/// processors (drivers refuse nodes without); else another such node; else one that has memory at
/// least. A machine that tells nothing has one node: 0. -1: no node has memory that may be used.
int host_node(int near, const NodeFiles& files = {});

}  // namespace firn
