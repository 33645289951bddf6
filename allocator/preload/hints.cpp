// Where a program says that managed memory is wanted: of Firn's blocks these are hints. (The driver
// refuses them of memory that is not managed, and is asked about everything else as before.)
//
//   prefetch to the block's device     Engine::prefetch(), at its place in the stream
//   prefetch to the host               Engine::cold(), at its place in the stream
//   prefetch to another device         no effect: Firn's blocks have one device
//   preferred location: the host       Engine::cold(), behind the block's uses so far
//   preferred location: a device,      no effect: a block's place is its device in any case; copies
//   read mostly, accessed by, and      in host memory are kept until a write anyway, and peers have
//   what takes an advice back          access or not by cuCtxEnablePeerAccess
//
// Wrong ranges, locations, flags and streams are answered as by the driver for managed memory; the
// numbers of NUMA nodes are not looked at. But while the stream is captured, which the driver
// refuses, they are ignored.
#include <algorithm>
#include <optional>
#include <vector>

#include "allocator/preload/captures.h"
#include "allocator/preload/engines.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/views.h"
#include "allocator/preload/work.h"

namespace firn::preload {

namespace {
constexpr CUdevice cpu_device = -1;  // CU_DEVICE_CPU

CUmemLocation location_of(CUdevice device) {
  return device == cpu_device ? CUmemLocation{CU_MEM_LOCATION_TYPE_HOST, 0}
                              : CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, device};
}

/// An error of the driver's, where there is no such place.
CUresult check_location(const CUmemLocation& location) {
  int devices = 0;
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      if (const CUresult result = real().cuDeviceGetCount(&devices)) return result;
      return location.id >= 0 && location.id < devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

bool on_host(const CUmemLocation& location) {
  return location.type != CU_MEM_LOCATION_TYPE_DEVICE;
}

/// Is all of it in one live block, but for what fills the last page of it?
bool in_block(View& view, CUdeviceptr address, size_t bytes) {
  constexpr uint64_t page = 4096;
  Reached block;
  if (bytes == 0 || !block_around(view, address, block)) return false;
  return bytes <= (block.base + block.bytes + page - 1) / page * page - address;
}

/// Does the stream take hints now? None: it is captured. An error: there is no such stream.
std::optional<CUresult> refuses(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult asked = real().cuStreamIsCapturing(stream, &status);
  if (asked >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && captures_under_way()) return std::nullopt;
  if (asked == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE) return std::nullopt;
  return asked;
}

struct Wanted {
  CUdeviceptr address;
  size_t bytes;
  CUmemLocation location;
  Engine::Addresses range() const { return {address, bytes}; }
};

/// Hints at all of them, which are in blocks, once each has been looked at.
CUresult prefetch(const std::vector<Wanted>& all, CUstream stream) {
  for (const Wanted& wanted : all) {
    View* view = views().at(wanted.range().base);
    if (!view || !in_block(*view, wanted.address, wanted.bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult wrong = check_location(wanted.location)) return wrong;
  }
  const std::optional<CUresult> refused = refuses(stream);
  if (!refused) return CUDA_SUCCESS;
  if (*refused != CUDA_SUCCESS) return *refused;
  const Where where = where_on(stream);
  views().refresh();
  for (unsigned i = 0, n = views().count(); i < n; ++i) {
    View& view = views()[i];
    const CUstream known = where.context && where.context != view.context
                               ? view.engine->stream_of(where.stream, where.context)
                               : where.stream;
    std::vector<Engine::Addresses> wanted_here, cold;
    for (const Wanted& wanted : all) {
      if (!view.arena.contains(wanted.range().base)) continue;
      if (on_host(wanted.location))
        cold.push_back(wanted.range());
      else if (wanted.location.id == view.device)
        wanted_here.push_back(wanted.range());
    }
    // (A block that is freed meanwhile takes no hint: that is no error of this call's.)
    if (!cold.empty()) (void)view.engine->cold(cold, known);
    if (!wanted_here.empty()) (void)view.engine->prefetch(wanted_here, known);
  }
  return CUDA_SUCCESS;
}

template <class Call>
CUresult prefetch_one(const Wanted& wanted, unsigned flags, CUstream stream, Call&& call) {
  if (!views().at(wanted.range().base)) return call();
  return flags == 0 ? prefetch({wanted}, stream) : CUDA_ERROR_INVALID_VALUE;
}

template <class Call>
CUresult prefetch_batch(const CUdeviceptr* addresses, const size_t* bytes, size_t count,
                        const CUmemLocation* locations, const size_t* indices,
                        size_t location_count, unsigned long long flags, CUstream stream,
                        Call&& call) {
  const bool fine = addresses && bytes && locations && indices && flags == 0 &&
                    stream && stream != CU_STREAM_LEGACY && location_count > 0 &&
                    location_count <= count && indices[0] == 0;
  const auto is_firns = [](CUdeviceptr address) { return views().at(address) != nullptr; };
  // One that has other memory, too, is the driver's to refuse.
  if (!fine || !std::all_of(addresses, addresses + count, is_firns)) return call();
  std::vector<Wanted> all;
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    if (at + 1 < location_count && indices[at + 1] == i) ++at;
    all.push_back({addresses[i], bytes[i], locations[at]});
  }
  return at + 1 == location_count ? prefetch(all, stream) : CUDA_ERROR_INVALID_VALUE;
}

template <class Call>
CUresult advise(const Wanted& wanted, int advice, Call&& call) {
  enum : int { read_mostly = 1, preferred = 3, accessed_by = 5, accessed_by_no_more = 6 };
  View* view = views().at(wanted.range().base);
  if (!view) return call();
  if (advice < read_mostly || advice > accessed_by_no_more ||
      !in_block(*view, wanted.address, wanted.bytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (advice != preferred && advice < accessed_by) return CUDA_SUCCESS;
  if (advice >= accessed_by && wanted.location.type != CU_MEM_LOCATION_TYPE_DEVICE &&
      wanted.location.type != CU_MEM_LOCATION_TYPE_HOST)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult wrong = check_location(wanted.location)) return wrong;
  if (advice == preferred && on_host(wanted.location)) {
    const Engine::Addresses range = wanted.range();
    (void)view->engine->cold({&range, 1});
  }
  return CUDA_SUCCESS;
}
}  // namespace

// An entry and its variant whose null stream is the thread's own.
#define HINT_ON_STREAM(entry, parameters, arguments, hint, ...)                                \
  CUresult entry parameters {                                                                  \
    return hint(__VA_ARGS__, stream, [&] { return real().entry arguments; });                  \
  }                                                                                            \
  CUresult entry##_ptsz parameters {                                                           \
    return hint(__VA_ARGS__, own(stream), [&] { return real().entry##_ptsz arguments; });      \
  }

HINT_ON_STREAM(cuMemPrefetchAsync,
               (CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream),
               (address, bytes, device, stream), prefetch_one,
               Wanted{address, bytes, location_of(device)}, 0)
HINT_ON_STREAM(cuMemPrefetchAsync_v2,
               (CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags,
                CUstream stream),
               (address, bytes, location, flags, stream), prefetch_one,
               Wanted{address, bytes, location}, flags)
HINT_ON_STREAM(cuMemPrefetchBatchAsync,
               (CUdeviceptr* addresses, size_t* bytes, size_t count, CUmemLocation* locations,
                size_t* indices, size_t location_count, unsigned long long flags,
                CUstream stream),
               (addresses, bytes, count, locations, indices, location_count, flags, stream),
               prefetch_batch, addresses, bytes, count, locations, indices, location_count, flags)

CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, int advice, CUdevice device) {
  return advise({address, bytes, location_of(device)}, advice,
                [&] { return real().cuMemAdvise(address, bytes, advice, device); });
}
CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, int advice, CUmemLocation location) {
  return advise({address, bytes, location}, advice,
                [&] { return real().cuMemAdvise_v2(address, bytes, advice, location); });
}

#undef HINT_ON_STREAM

}  // namespace firn::preload
