// The memory that this machine, or our container, has for us, and a process's default share of it
// to pin. Owns: nothing. Locks: none (reads /proc and /sys).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace firn {

/// A memory cgroup, of version 1 or 2, by its folder.
struct MemoryGroup {
  std::string folder;
  int version = 2;
  bool operator==(const MemoryGroup&) const = default;
};

/// The groups that limit a process, each before the one around it, from the texts of its
/// /proc/PID/cgroup and /proc/PID/mountinfo. Malformed lines are skipped.
std::vector<MemoryGroup> memory_groups(std::string_view cgroup, std::string_view mountinfo);

struct GroupMemory {
  uint64_t limit = UINT64_MAX;  // bytes; UINT64_MAX: none
  uint64_t left = UINT64_MAX;   // its unused part, reclaimable file cache included
};

/// The least of memory.max and memory.high (memory.limit_in_bytes in version 1), and its unused
/// part. An unreadable file limits nothing.
GroupMemory read_group(const MemoryGroup& group);

/// The value of a line of /proc/meminfo ("MemTotal:"), in bytes, from its text; 0: not there.
uint64_t meminfo_bytes(std::string_view meminfo, std::string_view wanted);

/// The percentage after "full avg10=" in the text of a memory.pressure; 0: it is not there.
double full_pressure(std::string_view text);

/// The least of all groups that bind this process.
GroupMemory cgroup_memory();

/// Memory that is available by /proc/meminfo, at most what is left to the cgroup; 0: none, or
/// unreadable (see machine_memory_bytes()).
uint64_t available_memory_bytes();

/// Percentage of the last ten seconds in which all of this process's group (or of the machine, if
/// the kernel says no more) stalled for want of memory; 0: unreadable.
double memory_pressure();

/// The default of firn_host for one of `ranks` processes that use Firn: together they pin at most
/// half of what is available, and only as they need it.
uint64_t host_share_bytes(uint64_t available_bytes, unsigned ranks);

/// All of the machine's memory, at most the cgroup's limit; 0: unreadable.
uint64_t machine_memory_bytes();

/// The part of `machine_bytes` that is never pinned, for other allocations, this process's own
/// among them: an eighth, at least 64 MiB, at most 4 GiB.
uint64_t host_kept_bytes(uint64_t machine_bytes);

}  // namespace firn
