// Entries of linear memory: cuMemAlloc and its family, managed memory, stream-ordered pools.
#include "firn/saturating.h"
#include "graph.h"
#include "gpu.h"

namespace firn::software {

namespace {
constexpr size_t pitch_alignment = 512;

CUresult allocate(Gate& gate, CUdeviceptr* address, Allocation wanted) {
  if (!address || !wanted.bytes) return CUDA_ERROR_INVALID_VALUE;
  DeviceMemory& memory = gpu().device(wanted.device).memory;
  uint64_t base = 0;
  CUresult result = gpu().space.allocate_linear(memory, wanted, &base);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && !gpu().scheduler.idle()) {
    // Frees may be on their way through streams: the driver waits for them before it gives up.
    const auto& live = gpu().streams.live();
    for (auto& [handle, stream] : std::map(live.begin(), live.end()))  // a copy, in order
      if (stream->device == wanted.device && !stream->capture)
        gpu().scheduler.wait_for(gate.lock(), gate.entry(), stream->last);
    result = gpu().space.allocate_linear(memory, wanted, &base);
  }
  if (result == CUDA_SUCCESS) *address = base;
  return result;
}

CUresult allocate_here(Gate& gate, CUdeviceptr* address, size_t bytes, Allocation::Kind kind) {
  if (CUresult result = forbid_in_capture(gate)) return result;
  return allocate(gate, address, {.kind = kind, .bytes = bytes, .device = gate.context()->device,
                                  .context = gate.context()->handle});
}

std::shared_ptr<Pool> pool_of(Gate& gate, uint64_t handle) {
  auto pool = gpu().pools.find(gate.entry(), handle);
  return pool && !pool->destroyed ? pool : nullptr;
}

CUresult allocate_async(Gate& gate, CUdeviceptr* address, size_t bytes, uint64_t pool_handle,
                        CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (CUresult result = find_stream(gate, handle, &stream)) return result;
  if (stream->capture) {  // memory nodes of graphs are not implemented
    stream->capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (!pool_handle) pool_handle = gpu().device(stream->device).current_pool;
  std::shared_ptr<Pool> pool = pool_of(gate, pool_handle);
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = allocate(gate, address, {.bytes = bytes, .device = pool->device,
                                             .context = gate.context()->handle,
                                             .pool = pool_handle});
  if (result != CUDA_SUCCESS) return result;
  pool->used_bytes += bytes;
  pool->used_high = std::max(pool->used_high, pool->used_bytes);
  return CUDA_SUCCESS;
}

void release(uint64_t base) {
  Allocation* allocation = gpu().space.allocation_at(base);
  if (allocation->pool) {
    auto pool = gpu().pools.find("cuMemFree", allocation->pool);
    pool->used_bytes -= allocation->bytes;
    if (pool->destroyed && !pool->used_bytes) gpu().pools.remove(pool->handle);
  }
  gpu().space.free_linear(gpu().device(allocation->device).memory, base);
}
}  // namespace

FIRN_GPU_API CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  return enter("cuMemAlloc", Need::context, [&](Gate& gate) {
    return allocate_here(gate, address, bytes, Allocation::Kind::linear);
  });
}

FIRN_GPU_API CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  return enter("cuMemAllocManaged", Need::context, [&](Gate& gate) -> CUresult {
    if (flags != 1 && flags != 2) return CUDA_ERROR_INVALID_VALUE;
    return allocate_here(gate, address, bytes, Allocation::Kind::managed);
  });
}

FIRN_GPU_API CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width_bytes,
                                         size_t height, unsigned element_bytes) {
  return enter("cuMemAllocPitch", Need::context, [&](Gate& gate) -> CUresult {
    if (!pitch || !width_bytes || !height) return CUDA_ERROR_INVALID_VALUE;
    if (element_bytes != 4 && element_bytes != 8 && element_bytes != 16)
      return CUDA_ERROR_INVALID_VALUE;
    if (width_bytes > size_t{pitch_most}) return CUDA_ERROR_INVALID_VALUE;
    const size_t row = round_up(width_bytes, pitch_alignment);
    CUresult result = allocate_here(gate, address, saturating_multiply(row, height),
                                    Allocation::Kind::linear);
    if (result == CUDA_SUCCESS) *pitch = row;
    return result;
  });
}

FIRN_GPU_API CUresult cuMemFree_v2(CUdeviceptr address) {
  return enter("cuMemFree", Need::context, [&](Gate& gate) -> CUresult {
    if (CUresult result = forbid_in_capture(gate)) return result;
    if (!address) return CUDA_SUCCESS;
    const Allocation* allocation = gpu().space.allocation_at(address);
    if (!allocation || !allocation->on_heap()) return CUDA_ERROR_INVALID_VALUE;
    // It waits for the work that uses the memory, as the driver does.
    const size_t bytes = allocation->bytes;
    gpu().scheduler.wait_until(gate.lock(), gate.entry(), [&] {
      return !gpu().scheduler.user_of(address, bytes);
    });
    if (!gpu().space.allocation_at(address)) die(gate.entry(), hex(address) + " freed twice");
    release(address);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_ENTRY_PTSZ(cuMemAllocAsync, (CUdeviceptr* address, size_t bytes, CUstream stream),
                    (address, bytes, stream)) {
  return enter("cuMemAllocAsync", Need::context, [&](Gate& gate) {
    return allocate_async(gate, address, bytes, 0, stream);
  });
}

FIRN_GPU_ENTRY_PTSZ(cuMemAllocFromPoolAsync,
                    (CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream),
                    (address, bytes, pool, stream)) {
  return enter("cuMemAllocFromPoolAsync", Need::context, [&](Gate& gate) -> CUresult {
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    return allocate_async(gate, address, bytes, reinterpret_cast<uint64_t>(pool), stream);
  });
}

FIRN_GPU_ENTRY_PTSZ(cuMemFreeAsync, (CUdeviceptr address, CUstream handle), (address, handle)) {
  return enter("cuMemFreeAsync", Need::context, [&](Gate& gate) -> CUresult {
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(gate, handle, &stream)) return result;
    if (stream->capture) {
      stream->capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    Allocation* allocation = gpu().space.allocation_at(address);
    if (!allocation || !allocation->on_heap()) return CUDA_ERROR_INVALID_VALUE;
    return submit(gate, stream, Body{.entry = "cuMemFreeAsync", .settle = [address] {
      const Allocation* mine = gpu().space.allocation_at(address);
      if (!mine) die("cuMemFreeAsync", hex(address) + " freed twice");
      if (const Work* work = gpu().scheduler.user_of(address, mine->bytes))
        die("cuMemFreeAsync", hex(address) + " is used by work that is still queued (" +
                                  work->body.entry + ")");
      release(address);
    }});
  });
}

FIRN_GPU_API CUresult cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* props) {
  return enter("cuMemPoolCreate", Need::initialised, [&](Gate&) -> CUresult {
    if (!handle || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
      return CUDA_ERROR_INVALID_VALUE;
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        props->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
      return CUDA_ERROR_NOT_SUPPORTED;
    if (!gpu().has_device(props->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    auto pool = std::make_shared<Pool>();
    pool->device = props->location.id;
    pool->handle = gpu().pools.add(pool);
    *handle = as_handle<CUmemoryPool>(pool->handle);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return enter("cuMemPoolDestroy", Need::initialised, [&](Gate& gate) -> CUresult {
    auto pool = pool_of(gate, reinterpret_cast<uint64_t>(handle));
    if (!pool || pool->is_default) return CUDA_ERROR_INVALID_VALUE;
    Device& device = gpu().device(pool->device);
    if (device.current_pool == pool->handle) device.current_pool = device.default_pool;
    pool->destroyed = true;
    if (!pool->used_bytes) gpu().pools.remove(pool->handle);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t) {
  return enter("cuMemPoolTrimTo", Need::initialised, [&](Gate& gate) -> CUresult {
    // Freed memory goes back to the device at once: there is nothing to trim.
    return pool_of(gate, reinterpret_cast<uint64_t>(handle)) ? CUDA_SUCCESS
                                                             : CUDA_ERROR_INVALID_VALUE;
  });
}

FIRN_GPU_API CUresult cuMemPoolGetAttribute(CUmemoryPool handle, int attribute, void* value) {
  return enter("cuMemPoolGetAttribute", Need::initialised, [&](Gate& gate) -> CUresult {
    auto pool = pool_of(gate, reinterpret_cast<uint64_t>(handle));
    if (!pool || !value) return CUDA_ERROR_INVALID_VALUE;
    auto& wide = *static_cast<uint64_t*>(value);
    switch (attribute) {
      case pool_reuse_follow_event:
      case pool_reuse_opportunistic:
      case pool_reuse_internal: *static_cast<int*>(value) = pool->reuse[attribute]; break;
      case pool_release_threshold: wide = pool->release_threshold; break;
      case pool_reserved_current:
      case pool_used_current: wide = pool->used_bytes; break;
      case pool_reserved_high:
      case pool_used_high: wide = pool->used_high; break;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int attribute, void* value) {
  return enter("cuMemPoolSetAttribute", Need::initialised, [&](Gate& gate) -> CUresult {
    auto pool = pool_of(gate, reinterpret_cast<uint64_t>(handle));
    if (!pool || !value) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
      case pool_reuse_follow_event:
      case pool_reuse_opportunistic:
      case pool_reuse_internal: pool->reuse[attribute] = *static_cast<int*>(value); break;
      case pool_release_threshold:
        pool->release_threshold = *static_cast<uint64_t*>(value);
        break;
      case pool_reserved_high:
      case pool_used_high:
        if (*static_cast<uint64_t*>(value)) return CUDA_ERROR_INVALID_VALUE;
        pool->used_high = pool->used_bytes;
        break;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* access,
                                         size_t count) {
  return enter("cuMemPoolSetAccess", Need::initialised, [&](Gate& gate) -> CUresult {
    if (!pool_of(gate, reinterpret_cast<uint64_t>(handle)) || (!access && count))
      return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i)
      if (!gpu().has_device(access[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
    return CUDA_SUCCESS;  // linear memory is within reach of every device
  });
}

FIRN_GPU_API CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle,
                                         CUmemLocation* location) {
  return enter("cuMemPoolGetAccess", Need::initialised, [&](Gate& gate) -> CUresult {
    if (!flags || !location || !pool_of(gate, reinterpret_cast<uint64_t>(handle)))
      return CUDA_ERROR_INVALID_VALUE;
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
  });
}

namespace {
CUresult get_pool(const char* entry, CUmemoryPool* handle, CUdevice device,
                  uint64_t Device::*which) {
  return enter(entry, Need::initialised, [&](Gate&) -> CUresult {
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (!gpu().has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *handle = as_handle<CUmemoryPool>(gpu().device(device).*which);
    return CUDA_SUCCESS;
  });
}
}  // namespace

FIRN_GPU_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* handle, CUdevice device) {
  return get_pool("cuDeviceGetDefaultMemPool", handle, device, &Device::default_pool);
}
FIRN_GPU_API CUresult cuDeviceGetMemPool(CUmemoryPool* handle, CUdevice device) {
  return get_pool("cuDeviceGetMemPool", handle, device, &Device::current_pool);
}
FIRN_GPU_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
  return enter("cuDeviceSetMemPool", Need::initialised, [&](Gate& gate) -> CUresult {
    if (!gpu().has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    auto pool = pool_of(gate, reinterpret_cast<uint64_t>(handle));
    if (!pool || pool->device != device) return CUDA_ERROR_INVALID_VALUE;
    gpu().device(device).current_pool = pool->handle;
    return CUDA_SUCCESS;
  });
}

}  // namespace firn::software
