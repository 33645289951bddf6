// Entries of host memory: allocated and registered, and what an address is (pointer attributes).
#include <cstring>

#include "call_cost.h"
#include "graph.h"
#include "gpu.h"

namespace firn::software {

namespace {
constexpr unsigned alloc_flags_all = 7;      // portable, devicemap, writecombined
constexpr unsigned register_flags_all = 15;  // portable, devicemap, iomemory, read_only

CUresult allocate_host(const char* entry, void** address, size_t bytes, unsigned flags) {
  return enter(entry, Need::context, [&](Gate& gate) -> CUresult {
    if (CUresult result = forbid_in_capture(gate)) return result;
    if (!address || !bytes || flags & ~alloc_flags_all) return CUDA_ERROR_INVALID_VALUE;
    uint64_t base = 0;
    CUresult result = gpu().space.allocate_host(
        {.bytes = bytes, .device = gate.context()->device, .context = gate.context()->handle,
         .flags = flags},
        &base);
    if (result == CUDA_SUCCESS) *address = reinterpret_cast<void*>(base);
    return result;
  });
}
}  // namespace

FIRN_GPU_API CUresult cuMemAllocHost_v2(void** address, size_t bytes) {
  return allocate_host("cuMemAllocHost", address, bytes, 0);
}
FIRN_GPU_API CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
  return allocate_host("cuMemHostAlloc", address, bytes, flags);
}

FIRN_GPU_API CUresult cuMemFreeHost(void* address) {
  return enter("cuMemFreeHost", Need::context, [&](Gate& gate) -> CUresult {
    const uint64_t base = reinterpret_cast<uint64_t>(address);
    const Allocation* allocation = gpu().space.allocation_at(base);
    if (!allocation || allocation->kind != Allocation::Kind::host) return CUDA_ERROR_INVALID_VALUE;
    const size_t bytes = allocation->bytes;
    gpu().scheduler.wait_until(gate.lock(), gate.entry(), [&] {
      return !gpu().scheduler.user_of(base, bytes);
    });
    if (!gpu().space.allocation_at(base)) die(gate.entry(), hex(base) + " freed twice");
    gpu().space.free_host(base);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
  return enter("cuMemHostRegister", Need::context, [&](Gate& gate) -> CUresult {
    if (!address || !bytes || flags & ~register_flags_all) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t base = reinterpret_cast<uint64_t>(address);
    if (base + bytes < base || gpu().space.of_device(base)) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result =
        gpu().space.register_host({.base = base, .bytes = bytes, .device = gate.context()->device,
                                   .context = gate.context()->handle, .flags = flags});
    charge(gate, Call::host_register, 1, bytes);
    return result;
  });
}

FIRN_GPU_API CUresult cuMemHostRegister(void* address, size_t bytes, unsigned flags) {
  return cuMemHostRegister_v2(address, bytes, flags);
}

FIRN_GPU_API CUresult cuMemHostUnregister(void* address) {
  return enter("cuMemHostUnregister", Need::context, [&](Gate& gate) -> CUresult {
    const uint64_t base = reinterpret_cast<uint64_t>(address);
    const Allocation* allocation = gpu().space.allocation_at(base);
    if (!allocation || allocation->kind != Allocation::Kind::registered)
      return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    if (const Work* work = gpu().scheduler.user_of(base, allocation->bytes))
      die(gate.entry(), hex(base) + " is used by work that is still queued (" +
                            std::string(work->body.entry) + ")");
    gpu().space.forget(base);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* host,
                                                   unsigned flags) {
  return enter("cuMemHostGetDevicePointer", Need::context, [&](Gate&) -> CUresult {
    const uint64_t address = reinterpret_cast<uint64_t>(host);
    const Allocation* allocation = gpu().space.allocation_around(address);
    if (!device || flags || !allocation || allocation->kind == Allocation::Kind::linear)
      return CUDA_ERROR_INVALID_VALUE;
    *device = address;
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuMemHostGetFlags(unsigned* flags, void* host) {
  return enter("cuMemHostGetFlags", Need::context, [&](Gate&) -> CUresult {
    const Allocation* allocation =
        gpu().space.allocation_around(reinterpret_cast<uint64_t>(host));
    if (!flags || !allocation || allocation->on_device()) return CUDA_ERROR_INVALID_VALUE;
    *flags = allocation->flags | CU_MEMHOSTREGISTER_DEVICEMAP;
    return CUDA_SUCCESS;
  });
}

namespace {
struct Known {  // an address within memory that the driver knows
  bool found = false, device = false, managed = false, mapped_frame = false;
  uint64_t base = 0, context = 0, id = 0, pool = 0;
  size_t bytes = 0;
  int ordinal = 0;
  unsigned handle_types = 0;
};

Known know(uint64_t address) {
  Known known;
  if (const Allocation* allocation = gpu().space.allocation_around(address)) {
    known = {.found = true, .device = allocation->on_device(),
             .managed = allocation->kind == Allocation::Kind::managed, .base = allocation->base,
             .context = allocation->context, .id = allocation->id, .pool = allocation->pool,
             .bytes = allocation->bytes, .ordinal = allocation->device};
  } else if (const Mapping* mapping = gpu().space.mapping_around(address)) {
    const CUmemAllocationProp& prop = mapping->frame->prop;
    known = {.found = true, .device = prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE,
             .mapped_frame = true, .base = mapping->base,
             .id = mapping->frame->handle, .bytes = mapping->bytes,
             .ordinal = prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? prop.location.id : 0,
             .handle_types = static_cast<unsigned>(prop.requestedHandleTypes)};
  }
  return known;
}

/// As wide as a real driver's answers (bench/gpu's question "widths"): truth values have four bytes.
CUresult attribute_of(void* out, int attribute, uint64_t address, const Known& known) {
  auto put = [&](auto value) {
    std::memcpy(out, &value, sizeof value);
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case pointer_context: return put(known.context);  // 0 for memory mapped from a frame
    case pointer_memory_type: return put(unsigned{known.device ? memory_device : memory_host});
    case pointer_device_pointer: return put(address);
    case pointer_host_pointer:
      return known.device && !known.managed ? CUDA_ERROR_INVALID_VALUE : put(address);
    case pointer_sync_memops: return put(unsigned{0});
    case pointer_buffer_id:
    case pointer_memory_block_id: return put(known.id);
    case pointer_is_managed: return put(int{known.managed});
    case pointer_device_ordinal: return put(known.ordinal);
    case pointer_is_legacy_ipc_capable:
    case pointer_is_decompress_capable: return put(0);
    case pointer_range_start:
    case pointer_mapping_base: return put(known.base);
    case pointer_range_bytes:
    case pointer_mapping_bytes: return put(known.bytes);
    case pointer_mapped: return put(1);
    case pointer_allowed_handle_types: return put(uint64_t{known.handle_types});
    case pointer_is_rdma_capable: return put(unsigned{0});
    case pointer_access_flags: return put(unsigned{CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    case pointer_mempool: return put(known.pool);
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}
}  // namespace

FIRN_GPU_API CUresult cuPointerGetAttribute(void* out, int attribute, CUdeviceptr address) {
  return enter("cuPointerGetAttribute", Need::initialised, [&](Gate&) -> CUresult {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    const Known known = know(address);
    return known.found ? attribute_of(out, attribute, address, known) : CUDA_ERROR_INVALID_VALUE;
  });
}

// For an address that the driver does not know, every attribute is its null, and that is a success.
FIRN_GPU_API CUresult cuPointerGetAttributes(unsigned count, int* wanted, void** out,
                                             CUdeviceptr address) {
  return enter("cuPointerGetAttributes", Need::initialised, [&](Gate&) -> CUresult {
    if (!count || !wanted || !out) return CUDA_ERROR_INVALID_VALUE;
    const Known known = know(address);
    for (unsigned i = 0; i < count; ++i) {
      if (known.found && attribute_of(out[i], wanted[i], address, known) == CUDA_SUCCESS) continue;
      const int none = -2;
      const uint64_t null = 0;
      switch (wanted[i]) {
        case pointer_device_ordinal: std::memcpy(out[i], &none, sizeof none); break;
        case pointer_memory_type:
        case pointer_sync_memops:
        case pointer_is_rdma_capable:
        case pointer_access_flags: std::memcpy(out[i], &null, sizeof(unsigned)); break;
        case pointer_is_legacy_ipc_capable:
        case pointer_mapped:
        case pointer_is_decompress_capable:
        case pointer_is_managed: std::memcpy(out[i], &null, sizeof(int)); break;
        case pointer_context:
        case pointer_device_pointer:
        case pointer_host_pointer:
        case pointer_buffer_id:
        case pointer_memory_block_id:
        case pointer_range_start:
        case pointer_range_bytes:
        case pointer_mapping_base:
        case pointer_mapping_bytes:
        case pointer_allowed_handle_types:
        case pointer_mempool: std::memcpy(out[i], &null, sizeof null); break;
        default: return CUDA_ERROR_INVALID_VALUE;
      }
    }
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuPointerSetAttribute(const void* value, int attribute, CUdeviceptr address) {
  return enter("cuPointerSetAttribute", Need::initialised, [&](Gate&) -> CUresult {
    const Known known = know(address);
    return value && known.found && attribute == pointer_sync_memops ? CUDA_SUCCESS
                                                                    : CUDA_ERROR_INVALID_VALUE;
  });
}

FIRN_GPU_API CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes,
                                              CUdeviceptr address) {
  return enter("cuMemGetAddressRange", Need::context, [&](Gate&) -> CUresult {
    const Known known = know(address);
    if (!known.found) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = known.base;
    if (bytes) *bytes = known.bytes;
    return CUDA_SUCCESS;
  });
}

}  // namespace firn::software
