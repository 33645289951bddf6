// Copies between devices that may not use each other's memory. The driver copies cuMemAlloc's
// memory by any call. It copies mapped memory, which Firn's is, without access only by calls that
// name both contexts, and stages those.
#include "allocator/preload/copies.h"
#include "allocator/preload/handlers.h"

namespace firn::preload {

namespace {
/// The copying context's device; -1: unknown.
CUdevice device_at(CUcontext context) {
  for (unsigned i = 0, n = views().count(); i < n; ++i)
    if (views()[i].context == context) return views()[i].device;
  CUdevice device = 0;
  return context == current_context() && real().cuCtxGetDevice(&device) == CUDA_SUCCESS ? device
                                                                                       : -1;
}

/// May that device use the memory around the address, which is mapped?
bool open_to(uint64_t address, CUdevice device) {
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device};
  unsigned long long flags = 0;
  return !real().cuMemGetAccess ||
         real().cuMemGetAccess(&flags, &location, address) != CUDA_SUCCESS ||
         flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

/// The context that a side is reached by; null: host memory.
CUcontext context_of_side(uint64_t address) {
  constexpr int context_attribute = 1;  // CU_POINTER_ATTRIBUTE_CONTEXT
  CUcontext context = nullptr;
  if (View* view = views().at(address)) return view->context;
  return real().cuPointerGetAttribute(&context, context_attribute, address) == CUDA_SUCCESS
             ? context
             : nullptr;
}

CUresult copy_between(const Copy& copy, CUcontext to, CUcontext from) {
  if (copy.rows == 1 && copy.slices == 1)
    return real().cuMemcpyPeerAsync(copy.to, to, copy.from, from, copy.bytes, copy.stream);
  for (size_t z = 0; z < copy.slices; ++z) {
    CUDA_MEMCPY3D_PEER is{};
    is.srcMemoryType = is.dstMemoryType = memory_device;
    is.dstDevice = copy.to + z * copy.to_slice;
    is.srcDevice = copy.from + z * copy.from_slice;
    is.reserved0 = from;
    is.reserved1 = to;
    is.dstPitch = copy.to_pitch;
    is.srcPitch = copy.from_pitch;
    is.dstHeight = is.srcHeight = is.Height = copy.rows;
    is.WidthInBytes = copy.bytes;
    is.Depth = 1;
    if (CUresult result = real().cuMemcpy3DPeerAsync(&is, copy.stream)) return result;
  }
  return CUDA_SUCCESS;
}
}  // namespace

bool copied_apart(const Copy& copy, const Work& work, CUresult& result) {
  if (!copy.to || !copy.from || copy.to_context || copy.source == Copy::Source::host ||
      copy.to_host)
    return false;
  View *to = views().at(copy.to), *from = views().at(copy.from);
  if ((!to && !from) || copy.bytes == 0 || copy.rows == 0 || copy.slices == 0) return false;
  const CUdevice device = device_at(work.at().context);
  if (device < 0) return false;
  const auto lacks = [&](const View* view, uint64_t address) {
    return view && view->device != device && !open_to(address, device);
  };
  if (!lacks(to, copy.to) && !lacks(from, copy.from)) return false;
  const CUcontext to_context = context_of_side(copy.to), from_context = context_of_side(copy.from);
  if (!to_context || !from_context) return false;
  result = copy_between(copy, to_context, from_context);
  return true;
}

}  // namespace firn::preload
