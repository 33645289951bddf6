// cuGetProcAddress: the driver is asked, and what it answers is looked up by its address, so that
// versions and per-thread variants are the driver's own choice. cuGetExportTable passes.
#include "allocator/preload/doors.h"
#include "allocator/preload/handlers.h"

namespace firn::preload {

namespace {
void substitute(void** entry) {
  if (!entry || !*entry) return;
  const Known known = door_of_address(*entry);
  if (known.door) *entry = known.door;
}
}  // namespace

CUresult cuGetProcAddress(const char* symbol, void** entry, int version, uint64_t flags) {
  const CUresult result = real().cuGetProcAddress(symbol, entry, version, flags);
  if (result == CUDA_SUCCESS) substitute(entry);
  return result;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** entry, int version, uint64_t flags,
                             int* status) {
  const CUresult result = real().cuGetProcAddress_v2(symbol, entry, version, flags, status);
  if (result == CUDA_SUCCESS) substitute(entry);
  return result;
}

CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  return real().cuGetExportTable(table, id);
}

}  // namespace firn::preload
