// Stream-ordered allocation. Pools stay the driver's objects. Their memory is Firn's, except in
// pools for other processes' import or of the host, and in captures, where it is the graph's.
//
// Owns a tally for each pool. Lock: one.
#include <algorithm>
#include <map>
#include <mutex>

#include "allocator/preload/captures.h"
#include "allocator/preload/engines.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/memory.h"

namespace firn::preload {

namespace {
struct Pool {
  uint64_t used_bytes = 0, used_high = 0;
  bool drivers = false;  // its memory is left to the driver
};
struct Pools {
  std::mutex mutex;
  std::map<CUmemoryPool, Pool> all;
  struct Owned {
    CUmemoryPool pool;
    uint64_t bytes;
  };
  std::map<uint64_t, Owned> blocks;  // by base
};
Pools& pools() {
  static Pools& all = *new Pools;
  return all;
}

// CUmemPool_attribute.
enum : int { reserved_current = 5, reserved_high = 6, used_current = 7, used_high = 8 };

bool left_to_driver(CUmemoryPool pool) {
  std::lock_guard lock(pools().mutex);
  const auto found = pools().all.find(pool);
  return found != pools().all.end() && found->second.drivers;
}

/// `pool`: null for the device's current one.
template <class Call>
CUresult allocate_from(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream,
                       Call&& call) {
  if (!address || bytes == 0) return call();
  if (captures_under_way() && captured_into(stream)) {
    const CUresult result = call();
    if (result == CUDA_SUCCESS) passed_on("memory of graphs' own", bytes);
    return result;
  }
  CUdevice device = 0;
  if (!pool && (real().cuCtxGetDevice(&device) != CUDA_SUCCESS ||
                real().cuDeviceGetMemPool(&pool, device) != CUDA_SUCCESS))
    return call();
  Engine* engine = left_to_driver(pool) ? nullptr : engine_here();
  if (!engine) {
    passed_on("memory of a pool that others import, or of the host", bytes);
    return others(bytes, call);
  }
  (void)views().of(*engine);
  const CUresult result = allocate(*engine, address, bytes, where_on(stream).stream);
  if (result != CUDA_SUCCESS) return result;
  std::lock_guard lock(pools().mutex);
  Pool& tally = pools().all[pool];
  tally.used_bytes += bytes;
  tally.used_high = std::max(tally.used_high, tally.used_bytes);
  pools().blocks[*address] = {pool, bytes};
  return CUDA_SUCCESS;
}

/// Work enqueued so far may use it; later work on the stream may reuse its memory.
template <class Call>
CUresult free_on(CUdeviceptr address, CUstream stream, Call&& call) {
  View* view = views().at(address);
  if (view && exiting()) return CUDA_SUCCESS;  // left to the operating system
  if (!view || (captures_under_way() && captured_into(stream))) return call();
  const auto block = block_at(address);
  if (!block) return CUDA_ERROR_INVALID_VALUE;
  const Where at = where_on(stream);
  Result<void> recorded = view->engine->record_stream(reinterpret_cast<void*>(address), at.stream,
                                                      at.context);
  return recorded ? release_block(*block) : result_of(recorded.error());
}
}  // namespace

void pool_gave_back(uint64_t base) {
  std::lock_guard lock(pools().mutex);
  const auto found = pools().blocks.find(base);
  if (found == pools().blocks.end()) return;
  const auto pool = pools().all.find(found->second.pool);
  if (pool != pools().all.end()) pool->second.used_bytes -= found->second.bytes;
  pools().blocks.erase(found);
}

void* pool_of_block(uint64_t base) {
  std::lock_guard lock(pools().mutex);
  const auto found = pools().blocks.find(base);
  return found == pools().blocks.end() ? nullptr : found->second.pool;
}

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate_from(address, bytes, nullptr, stream, [&] {
    return real().cuMemAllocAsync(address, bytes, stream);
  });
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate_from(address, bytes, nullptr, own(stream), [&] {
    return real().cuMemAllocAsync_ptsz(address, bytes, stream);
  });
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
  const auto call = [&] { return real().cuMemAllocFromPoolAsync(address, bytes, pool, stream); };
  return pool ? allocate_from(address, bytes, pool, stream, call) : call();
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                      CUstream stream) {
  const auto call = [&] {
    return real().cuMemAllocFromPoolAsync_ptsz(address, bytes, pool, stream);
  };
  return pool ? allocate_from(address, bytes, pool, own(stream), call) : call();
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return free_on(address, stream, [&] { return real().cuMemFreeAsync(address, stream); });
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return free_on(address, own(stream),
                 [&] { return real().cuMemFreeAsync_ptsz(address, stream); });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* props) {
  const CUresult result = real().cuMemPoolCreate(pool, props);
  if (result != CUDA_SUCCESS) return result;
  std::lock_guard lock(pools().mutex);
  Pool& made = pools().all[*pool];
  made = {};
  made.drivers = props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
                 props->handleTypes != CU_MEM_HANDLE_TYPE_NONE;
  CUdevice here = 0;
  // Another device's memory would come from the wrong engine.
  if (real().cuCtxGetDevice(&here) != CUDA_SUCCESS || here != props->location.id)
    made.drivers = true;
  return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  const CUresult result = real().cuMemPoolDestroy(pool);
  if (result != CUDA_SUCCESS) return result;
  std::lock_guard lock(pools().mutex);
  pools().all.erase(pool);
  std::erase_if(pools().blocks, [&](const auto& block) { return block.second.pool == pool; });
  return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes) {
  const CUresult result = real().cuMemPoolTrimTo(pool, bytes);
  if (result == CUDA_SUCCESS && !left_to_driver(pool) && views().count() > 0)
    if (Engine* engine = engine_here()) engine->trim();
  return result;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void* value) {
  const CUresult result = real().cuMemPoolGetAttribute(pool, attribute, value);
  if (result != CUDA_SUCCESS) return result;
  std::lock_guard lock(pools().mutex);
  const auto found = pools().all.find(pool);
  if (found == pools().all.end()) return result;
  auto& wide = *static_cast<uint64_t*>(value);
  if (attribute == reserved_current || attribute == used_current)
    wide += found->second.used_bytes;
  else if (attribute == reserved_high || attribute == used_high)
    wide += found->second.used_high;
  return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void* value) {
  const CUresult result = real().cuMemPoolSetAttribute(pool, attribute, value);
  if (result != CUDA_SUCCESS || (attribute != reserved_high && attribute != used_high))
    return result;
  std::lock_guard lock(pools().mutex);
  const auto found = pools().all.find(pool);
  if (found != pools().all.end()) found->second.used_high = found->second.used_bytes;
  return result;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* access, size_t count) {
  const CUresult result = real().cuMemPoolSetAccess(pool, access, count);
  Engine* engine = result == CUDA_SUCCESS && !left_to_driver(pool) ? engine_here() : nullptr;
  for (size_t i = 0; engine && i < count; ++i)
    if (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
      if (Result<void> open = engine->allow_peer(access[i].location.id); !open)
        return result_of(open.error());
  return result;
}

}  // namespace firn::preload
