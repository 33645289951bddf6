#include "own.h"

#include "gpu.h"

namespace firn::software {

CUresult Own::take(int device, uint64_t bytes) {
  DeviceMemory& memory = gpu().device(device).memory;
  if (bytes > memory.free_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  memory.used_bytes.add(bytes);
  taken_.emplace_back(device, bytes);
  return CUDA_SUCCESS;
}

void Own::give_back() {
  for (const auto& [device, bytes] : taken_)
    gpu().device(device).memory.used_bytes.subtract(bytes);
  taken_.clear();
}

}  // namespace firn::software
