// cuGetProcAddress. What is not in the table is answered as an older driver answers. Owns nothing.
#include "entry_table.h"
#include "gpu.h"
#include "veneers.h"

namespace firn::software {

namespace {
constexpr int driver_version = 13000;
constexpr uint64_t flag_legacy = 1, flag_per_thread = 2;
}  // namespace

FIRN_GPU_API CUresult cuGetProcAddress_v2(const char* symbol, void** out, int version,
                                          uint64_t flags, int* status) {
  if (!symbol || !out || flags & ~(flag_legacy | flag_per_thread) || version > driver_version)
    return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  const SymbolStatus found = find_entry(symbol, version, flags & flag_per_thread, out);
  if (found == status_found) *out = veneer_of(symbol, *out);
  if (status) *status = found;
  return found == status_found || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

FIRN_GPU_API CUresult cuGetProcAddress(const char* symbol, void** out, int version,
                                       uint64_t flags) {
  return cuGetProcAddress_v2(symbol, out, version, flags, nullptr);
}

}  // namespace firn::software
