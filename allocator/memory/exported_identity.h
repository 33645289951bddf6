// Identifies the export that an ExportedMemory's handle belongs to: descriptors and addresses are
// reused, this is not. Owns nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace firn {

/// When a process started, in ticks since boot, from the text of its /proc/PID/stat; 0: not found.
uint64_t start_ticks(std::string_view stat);

struct ExportedIdentity {
  uint64_t started;  // when the exporting process started, in ticks since boot
  uint64_t serial;   // of the export in that process
  bool operator==(const ExportedIdentity&) const = default;
};

/// From the bytes of ExportedMemory::handle(); nullopt: they are not a handle.
std::optional<ExportedIdentity> identity_of(const std::string& handle);

}  // namespace firn
