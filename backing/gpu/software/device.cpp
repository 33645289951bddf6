// Entries about devices. Owns nothing.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "gpu.h"
#include "identity.h"

namespace firn::software {

namespace {
struct Attribute {
  int id, value;
};
// Roughly an A100; sorted by id. Ids up to the last one known that are not here are 0.
constexpr int attribute_last = 150;
constexpr Attribute attributes[] = {
    {1, 1024},        // MAX_THREADS_PER_BLOCK
    {2, 1024},        // MAX_BLOCK_DIM_X
    {3, 1024},        // MAX_BLOCK_DIM_Y
    {4, 64},          // MAX_BLOCK_DIM_Z
    {5, 2147483647},  // MAX_GRID_DIM_X
    {6, 65535},       // MAX_GRID_DIM_Y
    {7, 65535},       // MAX_GRID_DIM_Z
    {8, 49152},       // MAX_SHARED_MEMORY_PER_BLOCK
    {9, 65536},       // TOTAL_CONSTANT_MEMORY
    {10, 32},         // WARP_SIZE
    {11, pitch_most}, // MAX_PITCH
    {12, 65536},      // MAX_REGISTERS_PER_BLOCK
    {13, 1410000},    // CLOCK_RATE, kHz
    {14, 512},        // TEXTURE_ALIGNMENT
    {15, 1},          // GPU_OVERLAP
    {16, 108},        // MULTIPROCESSOR_COUNT
    {19, 1},          // CAN_MAP_HOST_MEMORY
    {31, 1},          // CONCURRENT_KERNELS
    {36, 1215000},    // MEMORY_CLOCK_RATE, kHz
    {37, 5120},       // GLOBAL_MEMORY_BUS_WIDTH
    {38, 41943040},   // L2_CACHE_SIZE
    {39, 2048},       // MAX_THREADS_PER_MULTIPROCESSOR
    {40, 3},          // ASYNC_ENGINE_COUNT
    {41, 1},          // UNIFIED_ADDRESSING
    {75, 8},          // COMPUTE_CAPABILITY_MAJOR
    {76, 0},          // COMPUTE_CAPABILITY_MINOR
    {78, 1},          // STREAM_PRIORITIES_SUPPORTED
    {79, 1},          // GLOBAL_L1_CACHE_SUPPORTED
    {80, 1},          // LOCAL_L1_CACHE_SUPPORTED
    {81, 167936},     // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    {82, 65536},      // MAX_REGISTERS_PER_MULTIPROCESSOR
    {83, 1},          // MANAGED_MEMORY
    {89, 1},          // CONCURRENT_MANAGED_ACCESS
    {90, 1},          // COMPUTE_PREEMPTION_SUPPORTED
    {91, 1},          // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    {97, 166912},     // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    {99, 1},          // HOST_REGISTER_SUPPORTED
    {102, 1},         // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    {103, 1},         // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    {106, 32},        // MAX_BLOCKS_PER_MULTIPROCESSOR
    {111, 1024},      // RESERVED_SHARED_MEMORY_PER_BLOCK
    {115, 1},         // MEMORY_POOLS_SUPPORTED
    {122, 1},         // CAN_USE_64_BIT_STREAM_MEM_OPS
    {125, 1},         // IPC_EVENT_SUPPORTED
    {141, 1},         // HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
};

CUresult with_device(const char* entry, CUdevice device, const auto& body) {
  return enter(entry, Need::initialised, [&](Gate&) -> CUresult {
    if (!gpu().has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    return body();
  }, false);
}

CUresult uuid_of(CUuuid* uuid, CUdevice device) {
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  write_uuid(uuid->bytes, device);
  return CUDA_SUCCESS;
}
}  // namespace

FIRN_GPU_API CUresult cuDriverGetVersion(int* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = driver_version;
  return CUDA_SUCCESS;
}

FIRN_GPU_API CUresult cuDeviceGetCount(int* count) {
  return enter("cuDeviceGetCount", Need::initialised, [&](Gate&) -> CUresult {
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<int>(gpu().devices.size());
    return CUDA_SUCCESS;
  }, false);
}

FIRN_GPU_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return with_device("cuDeviceGet", ordinal, [&]() -> CUresult {
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  return with_device("cuDeviceGetName", device, [&]() -> CUresult {
    if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(name, static_cast<size_t>(length), "%s", device_name);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return with_device("cuDeviceGetUuid", device, [&] { return uuid_of(uuid, device); });
}
FIRN_GPU_API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return with_device("cuDeviceGetUuid", device, [&] { return uuid_of(uuid, device); });
}

FIRN_GPU_API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  return with_device("cuDeviceTotalMem", device, [&]() -> CUresult {
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *bytes = gpu().device(device).memory.capacity;
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                           CUdevice device) {
  return with_device("cuDeviceGetAttribute", device, [&]() -> CUresult {
    const int id = static_cast<int>(attribute);
    if (!value || id < 1 || id > attribute_last) return CUDA_ERROR_INVALID_VALUE;
    constexpr int pci_bus_id = 33;
    if (id == pci_bus_id) {
      *value = device + 1;
      return CUDA_SUCCESS;
    }
    constexpr int host_numa_memory = 141;
    if (id == host_numa_memory && gpu().refusals.host_numa == Refusals::HostNuma::none) {
      *value = 0;
      return CUDA_SUCCESS;
    }
    const auto* found = std::lower_bound(std::begin(attributes), std::end(attributes), id,
                                         [](const Attribute& a, int b) { return a.id < b; });
    *value = found != std::end(attributes) && found->id == id ? found->value : 0;
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  return with_device("cuDeviceComputeCapability", device, [&]() -> CUresult {
    if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
    *major = 8;
    *minor = 0;
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  return with_device("cuDeviceGetPCIBusId", device, [&]() -> CUresult {
    if (!id || length < 13) return CUDA_ERROR_INVALID_VALUE;
    write_bus_id(id, static_cast<size_t>(length), device);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* id) {
  return enter("cuDeviceGetByPCIBusId", Need::initialised, [&](Gate&) -> CUresult {
    if (!device || !id) return CUDA_ERROR_INVALID_VALUE;
    const char* bus = std::strchr(id, ':');
    // "domain:bus:device.function", "domain:bus:device" or "bus:device.function"
    const char* second = bus ? std::strchr(bus + 1, ':') : nullptr;
    const long number = std::strtol(second ? bus + 1 : id, nullptr, 16);
    if (!bus || !gpu().has_device(static_cast<int>(number) - 1)) return CUDA_ERROR_INVALID_DEVICE;
    *device = static_cast<int>(number) - 1;
    return CUDA_SUCCESS;
  }, false);
}

FIRN_GPU_API CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return with_device("cuDeviceCanAccessPeer", device, [&]() -> CUresult {
    if (!can) return CUDA_ERROR_INVALID_VALUE;
    if (!gpu().has_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuDeviceGetP2PAttribute(int* value, int attribute, CUdevice device,
                                              CUdevice peer) {
  return with_device("cuDeviceGetP2PAttribute", device, [&]() -> CUresult {
    if (!value || device == peer) return CUDA_ERROR_INVALID_VALUE;
    if (!gpu().has_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
    constexpr int access_supported = 2;
    *value = attribute == access_supported;
    return CUDA_SUCCESS;
  });
}

}  // namespace firn::software
