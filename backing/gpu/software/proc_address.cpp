// cuGetProcAddress. Names outside the table are answered as by an older driver. Owns nothing.
#include <atomic>
#include <cstring>

#include "entry_table.h"
#include "gpu.h"
#include "identity.h"
#include "veneers.h"

namespace firn::software {

namespace {
constexpr uint64_t flag_legacy = 1, flag_per_thread = 2;

/// NVIDIA's CUDA runtime asks for undocumented tables of the driver at its start, and gives up
/// without them.
void tell_of_its_runtime() {
  static std::atomic_flag told;
  if (!told.test_and_set())
    tell("this program asks for cuGetExportTable, undocumented tables of NVIDIA's driver. If a "
         "CUDA runtime of NVIDIA's asks (linked statically, as in CuPy, or another than the "
         "libcudart.so.13 that Firn brings), everything that uses that runtime fails here and "
         "needs a real GPU");
}
}  // namespace

FIRN_GPU_API CUresult cuGetProcAddress_v2(const char* symbol, void** out, int version,
                                          uint64_t flags, int* status) {
  if (!symbol || !out || flags & ~(flag_legacy | flag_per_thread) || version > driver_version)
    return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  if (std::strcmp(symbol, "cuGetExportTable") == 0) tell_of_its_runtime();
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
