// How much memory this machine, or the container that we are in, has for us, and a process's
// default share of it to pin. Owns: nothing. Locks: none (reads /proc and /sys).
#pragma once

#include <cstdint>

namespace firn {

/// The least memory.max from this process's cgroup (version 2) up to the root; UINT64_MAX: none.
uint64_t cgroup_memory_bytes();

/// What is available by /proc/meminfo, at most what the cgroup may have; 0: unreadable.
uint64_t available_memory_bytes();

/// The default of firn_host for one of `ranks` processes that use Firn: together they pin at most
/// half of what is available, and that only as they come to need it.
uint64_t host_share_bytes(uint64_t available_bytes, unsigned ranks);

}  // namespace firn
