// Which export an ExportedMemory's handle is of: descriptors and addresses come again, this does not.
// Owns nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace firn {

/// When a process started, in ticks since the machine did, by the text of its /proc/PID/stat; 0: it
/// does not say.
uint64_t start_ticks(std::string_view stat);

struct ExportedIdentity {
  uint64_t started;  // when the exporting process did, in ticks since the machine started
  uint64_t serial;   // of the export in that process
  bool operator==(const ExportedIdentity&) const = default;
};

/// Of the bytes of ExportedMemory::handle(); nothing: they are no handle.
std::optional<ExportedIdentity> identity_of(const std::string& handle);

}  // namespace firn
