// GPUDirect Storage (cuFile), which copies between SSDs and a device past host memory. Firn does
// without it: this says what it could win on this machine. Owns: nothing. Locks: none.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace firn::command {

/// A PCI device or bridge, and its link towards the processor.
struct PciLink {
  std::string address;  // "0000:3b:00.0"
  double gt_s = 0;      // the most per lane that it can; 0: unknown
  int lanes = 0;

  /// Bytes per second each way, less what the lanes' encoding takes and the packets' headers
  /// (256 bytes of payload in 280: PCI Express Base Specification, 2.2); 0: unknown.
  double bytes_s() const;
};

/// From the root port, or whatever is next to it, down to the device; empty: no PCI device.
using PciPath = std::vector<PciLink>;

/// `address` as cuDeviceGetPCIBusId() has it. `root`: where /sys is, for tests.
PciPath pci_path_of(const std::string& address, const std::string& root = {});
/// Of each disk that a file system on block device `device` (st_dev) is made of: below device
/// mapper and md, too. Empty: none is known (an overlay, a network's file system).
std::vector<PciPath> disk_paths_of(dev_t device, const std::string& root = {});

/// A spill directory: the disks below it, and what was measured, in bytes per second.
struct DiskSpeed {
  std::vector<PciPath> disks;
  double read_bytes_s = 0, write_bytes_s = 0;
};

struct DirectStorage {
  std::optional<bool> would_help;     // none: a speed, or a disk's place, is not known
  bool shared_switch = false;         // of the device with any disk
  double link_bytes_s = 0;            // the device's, each way; 0: unknown
  double uplink_bytes_s = 0;          // of the narrowest switch shared; 0: none, or unknown
  double disks_bytes_s = 0;           // read and written, all directories together
  double crossing_bytes_s = 0;        // of those, by the disks behind such switches
  double host_memory_bytes_s = 0;     // that copies by way of host memory take: each byte twice
  bool driver_loaded = false;         // nvidia-fs
  std::string why;
};

/// `device`: empty if it is not known. By way of host memory each byte crosses the device's link
/// once, as it does with GPUDirect. But host memory carries it twice; and if a switch joins SSD and
/// device, its uplink carries it there and back.
DirectStorage judge_direct_storage(const PciPath& device, const std::vector<DiskSpeed>& dirs,
                                   const std::string& root = {});

}  // namespace firn::command
