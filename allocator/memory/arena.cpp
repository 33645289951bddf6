#include "allocator/memory/arena.h"

namespace firn {

Result<std::unique_ptr<Arena>> Arena::reserve(const Driver& driver, uint64_t bytes) {
  bytes = (bytes + granule_bytes - 1) / granule_bytes * granule_bytes;
  CUdeviceptr base = 0;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  for (uint64_t least = bytes / 16; bytes >= least && bytes >= granule_bytes; bytes /= 2) {
    bytes = bytes / granule_bytes * granule_bytes;
    result = driver.mem_address_reserve(&base, bytes, granule_bytes, 0, 0);
    if (result != CUDA_SUCCESS) continue;
    try {
      return std::unique_ptr<Arena>(new Arena(driver, base, bytes));
    } catch (...) {  // (no memory for its table)
      (void)driver.mem_address_free(base, bytes);
      throw;
    }
  }
  return driver.error("cuMemAddressReserve", result);
}

Arena::Arena(const Driver& driver, uint64_t base, uint64_t bytes)
    : driver_(driver), base_(base), bytes_(bytes), table_(bytes / granule_bytes) {
  ranges_.add(base, bytes);
}

Arena::~Arena() {
  if (!abandoned_) (void)driver_.mem_address_free(base_, bytes_);
}

}  // namespace firn
