// The handle of 64 bytes by which another process opens a block: its bytes, and what they lead to.
// The bytes come from others, who may have changed them. Owns nothing. Locks: none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "allocator/memory/exported_identity.h"
#include "allocator/memory/exported_memory.h"
#include "firn/cuda_types.h"
#include "firn/descriptor.h"

namespace firn::preload {

struct SharedHandle {
  int32_t process = 0, file = 0;  // the exporting process, its file of words (words_file())
  uint64_t offset = 0;            // of the block in the frames' bytes
  ExportedIdentity identity{};    // file numbers and addresses recur; this does not
};

/// Nothing: the handle is not Firn's.
std::optional<SharedHandle> read_handle(const CUipcMemHandle& passed);
CUipcMemHandle handle_of(const SharedHandle& told);

/// A file that holds ExportedMemory::handle(); empty if none can be made.
Descriptor words_file(const std::string& words);

struct SharedBlock {
  std::unique_ptr<ImportedMemory> memory;
  CUdeviceptr address = 0;  // of the block within it
};
/// The device's context is current. Errors: as ImportedMemory::open, and invalid_argument: the
/// exporting process freed the block, or the handle was changed.
Result<SharedBlock> open_shared(const Driver& driver, int device, const SharedHandle& told);

}  // namespace firn::preload
