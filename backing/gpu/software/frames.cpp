// Entries of virtual memory management: reserve, create, map, access, and back.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>

#include "call_cost.h"
#include "gpu.h"

namespace firn::software {

namespace {
void aligned(const char* entry, const char* what, uint64_t value) {
  if (value % granule_bytes)
    die(entry, std::string(what) + " " + hex(value) +
                   " is not a multiple of the granularity, 2 MiB");
}

// A call takes the host's time: on the virtual clock, the settings' time for the call.
void spend(Gate& gate, Call call, uint64_t ns, uint64_t handles = 1) {
  charge(gate, call, handles);
  if (!ns || !gpu().scheduler.virtual_clock) return;
  gpu().scheduler.advance_to(gate.lock(), gpu().scheduler.now_ns() + ns);
}

// A descriptor for a part of a file of memory: an open file's position travels with its
// descriptors, and encodes where the part begins and how many granules it has.
int open_ticket(int file, uint64_t offset, uint64_t bytes) {
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  const int fd = ::open(path.c_str(), O_RDWR);  // a program started meanwhile has it, too
  if (fd < 0) return fd;
  const auto position = static_cast<off_t>(offset + bytes / granule_bytes);
  if (bytes / granule_bytes < granule_bytes && ::lseek(fd, position, SEEK_SET) == position)
    return fd;
  ::close(fd);
  return -1;
}

bool host_location(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

CUresult check_prop(const CUmemAllocationProp* prop) {
  if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
      prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (host_location(prop->location.type)) return CUDA_SUCCESS;
  if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  return gpu().has_device(prop->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

// Machines whose driver refuses features that it claims, or dies of them.
CUresult check_refusals(const CUmemAllocationProp* prop) {
  const Refusals& refusals = gpu().refusals;
  if (prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
      refusals.posix_fd != CUDA_SUCCESS)
    return refusals.posix_fd;
  if (prop->location.type != CU_MEM_LOCATION_TYPE_HOST_NUMA) return CUDA_SUCCESS;
  using HostNuma = Refusals::HostNuma;
  if (refusals.host_numa == HostNuma::crashes) {
    (void)std::signal(SIGSEGV, SIG_DFL);
    (void)std::raise(SIGSEGV);
  }
  return refusals.host_numa == HostNuma::none    ? CUDA_ERROR_NOT_SUPPORTED
         : refusals.host_numa == HostNuma::fails ? CUDA_ERROR_OUT_OF_MEMORY
                                                 : CUDA_SUCCESS;
}

std::shared_ptr<Frame> find_frame(const char* entry, uint64_t handle) {
  auto frame = gpu().frames.find(entry, handle);
  if (frame && frame->references == 0)
    die(entry, "frame handle " + hex(handle) + " used after its last release");
  return frame;
}
}  // namespace

FIRN_GPU_API CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  return enter("cuMemGetInfo", Need::context, [&](Gate& gate) -> CUresult {
    const DeviceMemory& memory = gpu().device(gate.context()->device).memory;
    if (free_bytes) *free_bytes = memory.free_bytes();
    if (total_bytes) *total_bytes = memory.capacity;
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuMemGetAllocationGranularity(size_t* granularity,
                                                    const CUmemAllocationProp* prop,
                                                    CUmemAllocationGranularity_flags) {
  return enter("cuMemGetAllocationGranularity", Need::initialised, [&](Gate&) -> CUresult {
    if (!granularity) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult result = check_prop(prop)) return result;
    *granularity = granule_bytes;
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment,
                                          CUdeviceptr hint, unsigned long long flags) {
  return enter("cuMemAddressReserve", Need::initialised, [&](Gate& gate) -> CUresult {
    if (!address || !bytes || flags || (alignment & (alignment - 1)))
      return CUDA_ERROR_INVALID_VALUE;
    aligned(gate.entry(), "size", bytes);
    uint64_t base = 0;
    if (CUresult result = gpu().space.reserve(&base, bytes, alignment, hint)) return result;
    *address = base;
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return enter("cuMemAddressFree", Need::initialised, [&](Gate& gate) {
    return gpu().space.free_reservation(gate.entry(), address, bytes);
  });
}

FIRN_GPU_API CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                                  const CUmemAllocationProp* prop, unsigned long long flags) {
  return enter("cuMemCreate", Need::initialised, [&](Gate& gate) -> CUresult {
    if (!handle || !bytes || flags) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult result = check_prop(prop)) return result;
    if (CUresult result = check_refusals(prop)) return result;
    aligned(gate.entry(), "size", bytes);
    DeviceMemory* memory = nullptr;
    if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
      memory = &gpu().device(prop->location.id).memory;
      if (bytes > memory->free_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    auto frame = gpu().space.create_frame(memory, memory ? prop->location.id : -1, bytes, *prop);
    if (!frame) return CUDA_ERROR_OUT_OF_MEMORY;
    try {
      *handle = frame->handle = gpu().frames.add(frame);
    } catch (const std::bad_alloc&) {
      frame->references = 0;
      gpu().space.drop_if_unused(frame);
      throw;
    }
    spend(gate, Call::create, gpu().config.call_ns_create);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return enter("cuMemRelease", Need::initialised, [&](Gate& gate) -> CUresult {
    auto frame = find_frame(gate.entry(), handle);
    if (!frame) return CUDA_ERROR_INVALID_VALUE;
    // The memory lives on while it is mapped; the handle does not.
    if (--frame->references == 0) gpu().frames.remove(handle);
    gpu().space.drop_if_unused(frame);
    spend(gate, Call::release, 0);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                               CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return enter("cuMemMap", Need::initialised, [&](Gate& gate) -> CUresult {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    auto frame = find_frame(gate.entry(), handle);
    if (!frame || !bytes) return CUDA_ERROR_INVALID_VALUE;
    aligned(gate.entry(), "address", address);
    aligned(gate.entry(), "size", bytes);
    if (offset) die(gate.entry(), "offset " + hex(offset) + ": it must be 0");
    if (bytes != frame->bytes)
      die(gate.entry(), "size " + hex(bytes) + " is not that of frame handle " + hex(handle) +
                            ", " + hex(frame->bytes));
    CUresult result = gpu().space.map(gate.entry(), address, bytes, frame);
    spend(gate, Call::map, gpu().config.call_ns_map);
    return result;
  });
}

FIRN_GPU_API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return enter("cuMemUnmap", Need::initialised, [&](Gate& gate) -> CUresult {
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    aligned(gate.entry(), "address", address);
    aligned(gate.entry(), "size", bytes);
    const size_t handles = gpu().space.mappings_in(address, bytes);
    CUresult result = gpu().space.unmap(gate.entry(), address, bytes);
    spend(gate, Call::unmap, gpu().config.call_ns_unmap, handles);
    return result;
  });
}

FIRN_GPU_API CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes,
                                     const CUmemAccessDesc* access, size_t count) {
  return enter("cuMemSetAccess", Need::initialised, [&](Gate& gate) -> CUresult {
    if (!access || !count || !bytes) return CUDA_ERROR_INVALID_VALUE;
    aligned(gate.entry(), "address", address);
    aligned(gate.entry(), "size", bytes);
    CUresult result = gpu().space.set_access(gate.entry(), address, bytes, access, count);
    spend(gate, Call::access, gpu().config.call_ns_access,
          gpu().space.mappings_in(address, bytes) * count);
    return result;
  });
}

FIRN_GPU_API CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                     CUdeviceptr address) {
  return enter("cuMemGetAccess", Need::initialised, [&](Gate&) -> CUresult {
    if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
      return CUDA_ERROR_INVALID_VALUE;
    if (!gpu().has_device(location->id)) return CUDA_ERROR_INVALID_DEVICE;
    const Mapping* mapping = gpu().space.mapping_around(address);
    if (!mapping) return CUDA_ERROR_INVALID_VALUE;
    *flags = mapping->access[location->id];
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle,
                                                  void* address) {
  return enter("cuMemRetainAllocationHandle", Need::initialised, [&](Gate&) -> CUresult {
    const Mapping* mapping = gpu().space.mapping_around(reinterpret_cast<uint64_t>(address));
    if (!handle || !mapping) return CUDA_ERROR_INVALID_VALUE;
    Frame& frame = *mapping->frame;
    if (frame.references++ == 0) frame.handle = gpu().frames.add(mapping->frame);
    *handle = frame.handle;
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                             CUmemGenericAllocationHandle handle) {
  return enter("cuMemGetAllocationPropertiesFromHandle", Need::initialised,
               [&](Gate& gate) -> CUresult {
    auto frame = find_frame(gate.entry(), handle);
    if (!frame || !prop) return CUDA_ERROR_INVALID_VALUE;
    *prop = frame->prop;
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuMemExportToShareableHandle(void* shareable,
                                                   CUmemGenericAllocationHandle handle,
                                                   CUmemAllocationHandleType type,
                                                   unsigned long long flags) {
  return enter("cuMemExportToShareableHandle", Need::initialised, [&](Gate& gate) -> CUresult {
    auto frame = find_frame(gate.entry(), handle);
    if (!frame || !shareable || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
      return CUDA_ERROR_INVALID_VALUE;
    if (frame->prop.requestedHandleTypes != type)
      return CUDA_ERROR_NOT_PERMITTED;  // not created to be shared
    const int fd = open_ticket(gpu().space.file_of(*frame), frame->offset, frame->bytes);
    if (fd < 0) return CUDA_ERROR_UNKNOWN;
    frame->exported = true;
    *static_cast<int*>(shareable) = fd;
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                                     void* shareable,
                                                     CUmemAllocationHandleType type) {
  return enter("cuMemImportFromShareableHandle", Need::context, [&](Gate& gate) -> CUresult {
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
      return CUDA_ERROR_INVALID_VALUE;
    const int fd = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
    const off_t position = ::lseek(fd, 0, SEEK_CUR);
    if (position <= 0 || position % granule_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return CUDA_ERROR_UNKNOWN;
    auto frame = std::make_shared<Frame>();
    frame->device = -1;  // counted where it was created
    frame->imported_fd = copy;
    frame->bytes = position % granule_bytes * granule_bytes;
    frame->offset = position / granule_bytes * granule_bytes;
    frame->references = 1;
    frame->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    frame->prop.requestedHandleTypes = type;
    frame->prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, gate.context()->device};
    *handle = frame->handle = gpu().frames.add(frame);
    return CUDA_SUCCESS;
  });
}

}  // namespace firn::software
