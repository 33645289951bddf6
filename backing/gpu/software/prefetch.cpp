// Entries that say where managed memory is wanted. It has one place here, which host and devices
// share: what is asked for is looked at as the driver does, and nothing moves.
#include <span>

#include "graph.h"
#include "gpu.h"

namespace firn::software {

namespace {
constexpr int cpu_device = -1;  // CU_DEVICE_CPU

CUmemLocation location_of(CUdevice device) {
  return device == cpu_device ? CUmemLocation{CU_MEM_LOCATION_TYPE_HOST, 0}
                              : CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, device};
}

CUresult check_location(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return gpu().has_device(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

/// All of it has to be managed memory: of nothing else does the driver choose the place.
CUresult check_range(CUdeviceptr address, size_t bytes) {
  const Allocation* allocation = gpu().space.allocation_around(address);
  return bytes > 0 && allocation && allocation->kind == Allocation::Kind::managed &&
                 bytes <= allocation->base + allocation->bytes - address
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

struct Wanted {
  CUdeviceptr address;
  size_t bytes;
  CUmemLocation location;
};

CUresult prefetch(const char* entry, std::span<const Wanted> all, unsigned long long flags,
                  CUstream handle) {
  return enter(entry, Need::context, [&](Gate& gate) -> CUresult {
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(gate, handle, &stream)) return result;
    if (stream->capture) {  // there is no node for it
      stream->capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    for (const Wanted& wanted : all) {
      if (CUresult result = check_range(wanted.address, wanted.bytes)) return result;
      if (CUresult result = check_location(wanted.location)) return result;
    }
    return CUDA_SUCCESS;
  });
}

CUresult advise(CUdeviceptr address, size_t bytes, int advice, const CUmemLocation& location) {
  return enter("cuMemAdvise", Need::context, [&](Gate&) -> CUresult {
    if (CUresult result = check_range(address, bytes)) return result;
    enum : int { read_mostly = 1, set_preferred = 3, set_accessed_by = 5, last = 6 };
    if (advice < read_mostly || advice > last) return CUDA_ERROR_INVALID_VALUE;
    if (advice == set_preferred) return check_location(location);
    if (advice < set_accessed_by) return CUDA_SUCCESS;  // the location is ignored
    if (location.type != CU_MEM_LOCATION_TYPE_DEVICE && location.type != CU_MEM_LOCATION_TYPE_HOST)
      return CUDA_ERROR_INVALID_VALUE;
    return check_location(location);
  });
}
}  // namespace

FIRN_GPU_ENTRY_PTSZ(cuMemPrefetchAsync,
                    (CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream),
                    (address, bytes, device, stream)) {
  const Wanted wanted{address, bytes, location_of(device)};
  return prefetch("cuMemPrefetchAsync", {&wanted, 1}, 0, stream);
}
FIRN_GPU_ENTRY_PTSZ(cuMemPrefetchAsync_v2,
                    (CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags,
                     CUstream stream),
                    (address, bytes, location, flags, stream)) {
  const Wanted wanted{address, bytes, location};
  return prefetch("cuMemPrefetchAsync", {&wanted, 1}, flags, stream);
}
FIRN_GPU_ENTRY_PTSZ(cuMemPrefetchBatchAsync,
                    (CUdeviceptr* addresses, size_t* bytes, size_t count, CUmemLocation* locations,
                     size_t* indices, size_t location_count, unsigned long long flags,
                     CUstream stream),
                    (addresses, bytes, count, locations, indices, location_count, flags, stream)) {
  const bool legacy =
      stream == CU_STREAM_LEGACY || (!stream && !thread().per_thread_default);
  if (!addresses || !bytes || !locations || !indices || legacy || location_count == 0 ||
      location_count > count || indices[0] != 0)
    return CUDA_ERROR_INVALID_VALUE;
  std::vector<Wanted> all;
  for (size_t i = 0, at = 0; i < count; ++i) {
    if (at + 1 < location_count && indices[at + 1] == i) ++at;
    all.push_back({addresses[i], bytes[i], locations[at]});
    if (i + 1 == count && at + 1 != location_count) return CUDA_ERROR_INVALID_VALUE;
  }
  return prefetch("cuMemPrefetchBatchAsync", all, flags, stream);
}

FIRN_GPU_API CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, int advice,
                                  CUdevice device) {
  return advise(address, bytes, advice, location_of(device));
}
FIRN_GPU_API CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, int advice,
                                     CUmemLocation location) {
  return advise(address, bytes, advice, location);
}

}  // namespace firn::software
