// Chooses the memory node that a device's host memory comes from. Owns nothing; reads the kernel's
// files. Locks: none.
#pragma once

#include <string>

namespace firn {

/// The kernel's files about nodes, and about those that this process may use.
struct NodeFiles {
  std::string nodes = "/sys/devices/system/node";  // node<N>/cpulist, node<N>/meminfo
  std::string status = "/proc/self/status";        // Mems_allowed_list
};

/// The node to take host memory from: `near` if it has processors (drivers refuse nodes without)
/// and memory that this process may use; else another such node; else any with such memory. If the
/// machine lists no nodes: `near`, at least 0. -1: no node has memory that may be used.
int host_node(int near, const NodeFiles& files = {});

}  // namespace firn
