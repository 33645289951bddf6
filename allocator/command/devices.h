// The GPUs of this machine, real or software, as its CUDA driver reports them. Owns: nothing; the
// library stays open for the life of the process. Locks: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace firn::command {

struct DeviceReport {
  std::string name;
  uint64_t memory_bytes = 0;
  std::string pci_address;      // "0000:3B:00.0", as the driver has it; empty: it has none
  bool virtual_memory = false;  // cuMemMap and friends: without them Firn cannot work
};

struct DriverReport {
  std::string library;  // as opened
  bool software = false;
  int version = 0;  // 13000 for CUDA 13.0
  std::vector<DeviceReport> devices;
  std::string why;  // why there is no usable device; empty when there is
  bool usable() const { return why.empty(); }
};

/// Opens `library` (empty: libcuda.so.1 as the loader finds it), initialises it and asks each
/// device. No context is created and no memory taken.
DriverReport examine_driver(const std::string& library);

}  // namespace firn::command
