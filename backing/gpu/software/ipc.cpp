// Entries for objects that several processes share by handles of 64 bytes: events, and linear
// memory. (Frames are shared by descriptors: frames.cpp.)
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "gpu.h"
#include "shared_mark.h"

namespace firn::software {

namespace {
constexpr uint64_t magic = 0x6d656d6e72696631;  // "1firnmem"

/// A part of a file of the other process, whole granules, and where in it the memory begins.
struct PassedMemory {
  uint64_t magic, offset, bytes, begin;
  int32_t process, fd;
};
static_assert(sizeof(PassedMemory) <= sizeof(CUipcMemHandle));

struct Opened {
  uint64_t base;
  size_t bytes;
  std::string handle;
  unsigned times = 1;
};
/// By the address that was given out.
std::map<uint64_t, Opened>& opened() {
  static auto& all = *new std::map<uint64_t, Opened>;
  return all;
}
}  // namespace

FIRN_GPU_API CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent of) {
  return enter("cuIpcGetEventHandle", Need::context, [&](Gate& gate) -> CUresult {
    auto event = gpu().events.find(gate.entry(), of);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (!handle || !event->shared || !export_mark(*event->shared, handle))
      return CUDA_ERROR_INVALID_VALUE;  // not created for it
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuIpcOpenEventHandle(CUevent* handle, CUipcEventHandle passed) {
  return enter("cuIpcOpenEventHandle", Need::context, [&](Gate& gate) -> CUresult {
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    auto event = std::make_shared<Event>();
    event->shared = import_mark(passed);
    if (!event->shared) return CUDA_ERROR_MAP_FAILED;
    event->context = gate.context();
    event->device = gate.context()->device;
    event->flags = CU_EVENT_DISABLE_TIMING | event_interprocess;
    event->handle = gpu().events.add(event);
    *handle = as_handle<CUevent>(event->handle);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  return enter("cuIpcGetMemHandle", Need::context, [&](Gate&) -> CUresult {
    const Allocation* found = gpu().space.allocation_around(address);
    if (!handle || !found || found->kind != Allocation::Kind::linear)
      return CUDA_ERROR_INVALID_VALUE;
    const DeviceMemory& memory = gpu().device(found->device).memory;
    const Heap& heap = memory.large.contains(found->base) ? memory.large : memory.small;
    const uint64_t from = heap.offset_of(found->base);
    const uint64_t begin = from % granule_bytes;
    const PassedMemory passed{magic, from - begin, round_up(begin + found->bytes, granule_bytes),
                              begin, ::getpid(), heap.fd()};
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &passed, sizeof passed);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle,
                                            unsigned flags) {
  return enter("cuIpcOpenMemHandle", Need::context, [&](Gate& gate) -> CUresult {
    PassedMemory passed{};
    std::memcpy(&passed, &handle, sizeof passed);
    if (!address || flags > 1 || passed.magic != magic) return CUDA_ERROR_INVALID_VALUE;
    // A process may not open its own memory.
    if (passed.process == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    const std::string key(handle.reserved, sizeof handle.reserved);
    for (auto& [at, known] : opened())
      if (known.handle == key) {
        ++known.times;
        *address = at;
        return CUDA_SUCCESS;
      }
    const std::string path =
        "/proc/" + std::to_string(passed.process) + "/fd/" + std::to_string(passed.fd);
    auto frame = std::make_shared<Frame>();
    frame->imported_fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (frame->imported_fd < 0) return CUDA_ERROR_MAP_FAILED;
    frame->offset = passed.offset;
    frame->bytes = passed.bytes;
    const int device = gate.context()->device;
    frame->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    frame->prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    AddressSpace& space = gpu().space;
    uint64_t base = 0;
    CUresult result = space.reserve(&base, passed.bytes, granule_bytes, 0);
    if (result == CUDA_SUCCESS) {
      result = space.map(gate.entry(), base, passed.bytes, frame);
      CUmemAccessDesc access{frame->prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
      if (result == CUDA_SUCCESS)
        result = space.set_access(gate.entry(), base, passed.bytes, &access, 1);
      else
        (void)space.free_reservation(gate.entry(), base, passed.bytes);
    }
    if (frame->mappings == 0) space.drop_if_unused(frame);
    if (result != CUDA_SUCCESS) return result;
    *address = base + passed.begin;
    opened()[*address] = {base, passed.bytes, key};
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  return enter("cuIpcCloseMemHandle", Need::context, [&](Gate& gate) -> CUresult {
    const auto it = opened().find(address);
    if (it == opened().end()) return CUDA_ERROR_INVALID_VALUE;
    if (--it->second.times > 0) return CUDA_SUCCESS;
    const uint64_t base = it->second.base;
    const size_t bytes = it->second.bytes;
    opened().erase(it);
    gpu().scheduler.wait_until(gate.lock(), gate.entry(),
                               [&] { return !gpu().scheduler.user_of(base, bytes); });
    if (CUresult result = gpu().space.unmap(gate.entry(), base, bytes)) return result;
    return gpu().space.free_reservation(gate.entry(), base, bytes);
  });
}

}  // namespace firn::software
