// Finds this process's own among the configured directories, by what the launcher, the driver and
// sysfs say. The choice itself is ranks.h's. Owns: nothing. Locks: none.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "allocator/runtime/ranks.h"
#include "firn/driver.h"

namespace firn {

/// How far each rank's GPU is from each directory's SSD; empty if unknown: without NUMA nodes, or
/// when a rank sees fewer GPUs than there are ranks (by torchrun, rank n uses GPU n).
Distances rank_distances(unsigned ranks, const std::vector<std::string>& dirs,
                         const Driver& driver);

}  // namespace firn
