// A program's first calls to the driver. cuGetProcAddress asks the driver and looks its answer up
// by address, so that versions and per-thread variants are the driver's own choice.
// cuGetExportTable passes through.
#include <cstring>

#include "allocator/preload/coverage.h"
#include "allocator/preload/doors.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/identity.h"
#include "allocator/preload/pytorch.h"

namespace firn::preload {

namespace {
Count export_tables("export_tables");

void substitute(const char* symbol, void** entry, int version, CUresult result) {
  if (!symbol || !entry) return;
  // A runtime asks for this one first.
  if (std::strcmp(symbol, "cuInit") == 0) look_for_pytorch();
  const bool found = result == CUDA_SUCCESS && *entry;
  const Known known = found ? door_of_address(*entry) : Known{};
  saw_symbol(symbol, version, found, known);
  if (known.door) *entry = known.door;
  if (found && !known.entry && is_handled(symbol)) distrust(symbol);
}
}  // namespace

CUresult cuInit(unsigned flags) {
  look_for_pytorch();
  return real().cuInit(flags);
}

CUresult cuGetProcAddress(const char* symbol, void** entry, int version, uint64_t flags) {
  const CUresult result = real().cuGetProcAddress(symbol, entry, version, flags);
  substitute(symbol, entry, version, result);
  return result;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** entry, int version, uint64_t flags,
                             int* status) {
  const CUresult result = real().cuGetProcAddress_v2(symbol, entry, version, flags, status);
  substitute(symbol, entry, version, result);
  return result;
}

CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  export_tables.add();
  return real().cuGetExportTable(table, id);
}

}  // namespace firn::preload
