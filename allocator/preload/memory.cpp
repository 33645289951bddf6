// Device memory by the classic calls.
#include "allocator/preload/engines.h"
#include "allocator/preload/handlers.h"

namespace firn::preload {

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  Engine* engine = address && bytes > 0 ? engine_here() : nullptr;
  if (!engine) return real().cuMemAlloc_v2(address, bytes);
  Result<void*> made = engine->allocate(bytes, CU_STREAM_LEGACY);
  if (!made) return result_of(made.error());
  *address = reinterpret_cast<CUdeviceptr>(*made);
  return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  Engine* engine = engine_around(address);
  if (!engine) return real().cuMemFree_v2(address);
  Result<void> done = engine->free(reinterpret_cast<void*>(address));
  return done ? CUDA_SUCCESS : result_of(done.error());
}

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  const CUresult result = real().cuMemGetInfo_v2(free_bytes, total_bytes);
  Engine* engine = result == CUDA_SUCCESS && free_bytes && total_bytes ? engine_here() : nullptr;
  if (!engine) return result;
  const EngineStats stats = engine->stats();
  const uint64_t held = stats.allocated_bytes;
  *total_bytes = stats.budget_bytes;
  *free_bytes = stats.budget_bytes > held ? stats.budget_bytes - held : 0;
  return CUDA_SUCCESS;
}

}  // namespace firn::preload
