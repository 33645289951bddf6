// Which of the configured directories are this process's own, from what the launcher, the driver
// and sysfs say. The choice itself is ranks.h's. Owns: nothing. Locks: none.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "allocator/runtime/ranks.h"
#include "firn/driver.h"

namespace firn {

/// How far each rank's GPU is from each directory's SSD; empty where nothing is known: without NUMA
/// nodes, or when a rank sees less GPUs than there are ranks (by torchrun, rank n uses GPU n).
Distances rank_distances(unsigned ranks, const std::vector<std::string>& dirs,
                         const Driver& driver);

}  // namespace firn
