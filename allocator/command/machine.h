// This machine's memory as the kernel reports it: sizes, limits, huge pages. Read from /proc and
// /sys; a file that cannot be read leaves its member empty. Owns: nothing. Locks: none.
#pragma once

#include <cstdint>
#include <string>

namespace firn::command {

struct MachineReport {
  uint64_t memory_bytes = 0;              // MemTotal
  uint64_t available_bytes = 0;           // MemAvailable
  uint64_t cgroup_bytes = UINT64_MAX;     // the least limit of any group from here to the root
  uint64_t memlock_bytes = UINT64_MAX;    // RLIMIT_MEMLOCK, soft; UINT64_MAX: unlimited
  bool memlock_ignored = false;           // CAP_IPC_LOCK: the limit does not bind
  uint64_t file_size_bytes = UINT64_MAX;  // RLIMIT_FSIZE, soft
  uint64_t hugetlb_bytes = 0, hugetlb_free_bytes = 0;  // of the default huge page size
  std::string transparent;                             // "always", "madvise", "never"
  uint64_t map_count_max = 0;
  std::string kernel;  // uname -r

  /// Most memory this process may use.
  uint64_t limit_bytes() const { return memory_bytes < cgroup_bytes ? memory_bytes : cgroup_bytes; }
};

/// `root`: where /proc and /sys are, for tests.
MachineReport examine_machine(const std::string& root = {});

}  // namespace firn::command
