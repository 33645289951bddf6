// Memory shared with other processes: the exported frames, and their mapping in another process.
//
// A frame travels as a descriptor of the exporting process, which the importing one fetches with
// pidfd_getfd(2): the kernel requires the right to trace the exporter (the same user, and where
// kernel.yama.ptrace_scope is 1, an ancestor). Both processes see the same bytes, and order their
// work on them with events of both processes, as with cudaIpcOpenMemHandle.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "firn/descriptor.h"
#include "firn/driver.h"

namespace firn {

/// The frames around a block, which stays on the device until it is freed. The descriptors belong
/// to this object; children of this process do not inherit them.
class ExportedMemory {
 public:
  struct Part {
    Descriptor fd;
    uint64_t bytes;
  };
  /// Frames (with their sizes) that lie side by side from `base` on. Errors: driver (they were not
  /// made to be exported, or no descriptor is left: RLIMIT_NOFILE), io (the same).
  static Result<std::shared_ptr<const ExportedMemory>> make(
      const Driver& driver, uint64_t base,
      const std::vector<std::pair<CUmemGenericAllocationHandle, uint64_t>>& frames);
  ExportedMemory(const ExportedMemory&) = delete;
  ExportedMemory& operator=(const ExportedMemory&) = delete;

  uint64_t base() const { return base_; }
  /// For ImportedMemory::open in another process: bytes of any value. No two are alike.
  std::string handle() const;

 private:
  explicit ExportedMemory(uint64_t base);
  uint64_t base_, serial_;
  std::vector<Part> parts_;
  // Holds the identity: while it is open, so are the parts. (So it is closed first.)
  Descriptor mark_;
};

/// Another process's frames, mapped here for the life of this object; all work that uses them must
/// be over before its end. Under no budget here: the exporter's counts them.
class ImportedMemory {
 public:
  /// The device's context is current. Errors: invalid_argument (not a handle of Firn's, or of
  /// another version), io (the process has ended, has freed the memory, or may not be traced: says
  /// what to change), driver.
  static Result<std::unique_ptr<ImportedMemory>> open(const Driver& driver, int device,
                                                      const std::string& handle);
  /// The device's context is current.
  ~ImportedMemory();
  ImportedMemory(const ImportedMemory&) = delete;
  ImportedMemory& operator=(const ImportedMemory&) = delete;

  uint64_t base() const { return base_; }  // stands for the exporter's ExportedMemory::base()
  uint64_t bytes() const { return bytes_; }

 private:
  explicit ImportedMemory(const Driver& driver) : driver_(driver) {}
  Result<void> map(int device, uint64_t bytes,
                   const std::vector<std::pair<CUmemGenericAllocationHandle, uint64_t>>& frames);
  const Driver& driver_;
  CUdeviceptr base_ = 0;
  uint64_t bytes_ = 0, mapped_ = 0;
};

}  // namespace firn
