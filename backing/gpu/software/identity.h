// The software GPU's identity, the same by the driver and by NVML.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace firn::software {

inline constexpr int devices_max = 16;
inline constexpr int driver_version = 13000;  // of CUDA
inline constexpr const char* device_name = "Firn software GPU";
inline constexpr uint64_t memory_bytes_default = uint64_t{8} << 30;

/// 16 bytes.
inline void write_uuid(void* uuid, int device) {
  std::memcpy(uuid, "firn software  ", 15);
  static_cast<char*>(uuid)[15] = static_cast<char>(device + 1);
}
/// Device d is in slot 0 of bus d + 1. `domain`: "0000", or with eight digits.
inline void write_bus_id(char* id, size_t length, int device, const char* domain = "0000") {
  std::snprintf(id, length, "%s:%02x:00.0", domain, static_cast<unsigned>(device + 1));
}

}  // namespace firn::software
