// The software CUDA runtime: devices, their properties, peers, versions, driver entry points.
#include <cstring>

#include "backing/gpu/software/cudart/runtime.h"

using namespace firn::cudart;

namespace {

struct IntegerProperty {
  CUdevice_attribute attribute;
  int cudaDeviceProp::*member;
};

// Properties that are one attribute each.
constexpr IntegerProperty integer_properties[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, &cudaDeviceProp::regsPerBlock},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, &cudaDeviceProp::warpSize},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &cudaDeviceProp::maxThreadsPerBlock},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &cudaDeviceProp::major},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &cudaDeviceProp::minor},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &cudaDeviceProp::multiProcessorCount},
    {CU_DEVICE_ATTRIBUTE_INTEGRATED, &cudaDeviceProp::integrated},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, &cudaDeviceProp::canMapHostMemory},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, &cudaDeviceProp::concurrentKernels},
    {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, &cudaDeviceProp::ECCEnabled},
    {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, &cudaDeviceProp::pciBusID},
    {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, &cudaDeviceProp::pciDeviceID},
    {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, &cudaDeviceProp::pciDomainID},
    {CU_DEVICE_ATTRIBUTE_TCC_DRIVER, &cudaDeviceProp::tccDriver},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, &cudaDeviceProp::asyncEngineCount},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, &cudaDeviceProp::unifiedAddressing},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, &cudaDeviceProp::memoryBusWidth},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &cudaDeviceProp::l2CacheSize},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
     &cudaDeviceProp::maxThreadsPerMultiProcessor},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, &cudaDeviceProp::streamPrioritiesSupported},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, &cudaDeviceProp::globalL1CacheSupported},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, &cudaDeviceProp::localL1CacheSupported},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, &cudaDeviceProp::regsPerMultiprocessor},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, &cudaDeviceProp::managedMemory},
    {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, &cudaDeviceProp::pageableMemoryAccess},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, &cudaDeviceProp::concurrentManagedAccess},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, &cudaDeviceProp::computePreemptionSupported},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
     &cudaDeviceProp::canUseHostPointerForRegisteredMem},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, &cudaDeviceProp::cooperativeLaunch},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR,
     &cudaDeviceProp::maxBlocksPerMultiProcessor},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, &cudaDeviceProp::hostRegisterSupported},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, &cudaDeviceProp::memoryPoolsSupported},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, &cudaDeviceProp::ipcEventSupported},
    {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, &cudaDeviceProp::clusterLaunch},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, &cudaDeviceProp::hostNumaId},
};

// An attribute that the driver does not know counts as 0: an absent capability.
int attribute_of(CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  const Driver& table = driver();
  return table.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

void fill_sizes(cudaDeviceProp* properties, CUdevice device) {
  const auto size = [&](CUdevice_attribute attribute) {
    return static_cast<size_t>(attribute_of(device, attribute));
  };
  properties->sharedMemPerBlock = size(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  properties->sharedMemPerBlockOptin = size(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  properties->sharedMemPerMultiprocessor =
      size(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  properties->reservedSharedMemPerBlock =
      size(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
  properties->memPitch = size(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
  properties->totalConstMem = size(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
  properties->textureAlignment = size(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  properties->texturePitchAlignment = size(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT);
  for (int axis = 0; axis < 3; ++axis) {
    const auto after = [&](CUdevice_attribute first) {
      return attribute_of(device, static_cast<CUdevice_attribute>(first + axis));
    };
    properties->maxThreadsDim[axis] = after(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
    properties->maxGridSize[axis] = after(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
  }
}

cudaError_t entry_point(const char* symbol, void** pointer, unsigned version,
                        unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  const Driver& table = driver();
  if (table.get_proc_address == nullptr) return keep(cudaErrorInsufficientDriver);
  if (symbol == nullptr || pointer == nullptr) return keep(cudaErrorInvalidValue);
  CUdriverProcAddressQueryResult why{};
  *pointer = nullptr;
  const CUresult result =
      table.get_proc_address(symbol, pointer, static_cast<int>(version), flags, &why);
  if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(why);
  // The status alone reports a symbol that is not there.
  return result == CUDA_ERROR_NOT_FOUND && status != nullptr ? cudaSuccess : keep(result);
}

}  // namespace

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
  if (version == nullptr) return keep(cudaErrorInvalidValue);
  *version = 0;
  if (driver().cuDriverGetVersion == nullptr) return cudaSuccess;  // documented: 0 without one
  return keep(driver().cuDriverGetVersion(version));
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return keep(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) { return keep(device_count(count)); }

cudaError_t cudaGetDevice(int* device) { return keep(current_device(device)); }
cudaError_t cudaSetDevice(int device) { return keep(enter_device(device)); }
cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  int before = 0;
  cudaError_t error = current_device(&before);
  if (error == cudaSuccess) error = enter_device(device);
  if (error == cudaSuccess) error = enter_device(before);
  return keep(error);
}
cudaError_t cudaSetValidDevices(int*, int) { return keep(not_supported("cudaSetValidDevices")); }
cudaError_t cudaDeviceSynchronize(void) { return FIRN_CALL(cuCtxSynchronize); }

cudaError_t cudaDeviceReset(void) {
  int device = 0;
  cudaError_t error = current_device(&device);
  if (error == cudaSuccess) error = static_cast<cudaError_t>(driver().cuCtxSetCurrent(nullptr));
  if (error == cudaSuccess) error = FIRN_CALL_BARE(cuDevicePrimaryCtxReset, device);
  if (error == cudaSuccess) forget_context(device);
  return keep(error);
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
  int device = 0;
  const cudaError_t error = current_device(&device);
  return error != cudaSuccess ? keep(error)
                              : FIRN_CALL_BARE(cuDevicePrimaryCtxSetFlags, device, flags);
}

cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  int device = 0;
  int active = 0;
  const cudaError_t error = current_device(&device);
  return error != cudaSuccess ? keep(error)
                              : FIRN_CALL_BARE(cuDevicePrimaryCtxGetState, device, flags, &active);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return FIRN_CALL_BARE(cuDeviceGetAttribute, value, static_cast<CUdevice_attribute>(attribute),
                        device);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  cudaError_t error = FIRN_CALL_BARE(cuDeviceGetName, properties->name,
                                     static_cast<int>(sizeof properties->name), device);
  if (error == cudaSuccess) {
    error = FIRN_CALL_BARE(cuDeviceTotalMem, &properties->totalGlobalMem, device);
  }
  if (error == cudaSuccess) {
    error = FIRN_CALL_BARE(cuDeviceGetUuid, reinterpret_cast<CUuuid*>(&properties->uuid), device);
  }
  if (error != cudaSuccess) return error;
  for (const IntegerProperty& property : integer_properties) {
    properties->*property.member = attribute_of(device, property.attribute);
  }
  fill_sizes(properties, device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  return FIRN_CALL_BARE(cuDeviceGetPCIBusId, id, length, device);
}
cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* id) {
  return FIRN_CALL_BARE(cuDeviceGetByPCIBusId, device, id);
}
cudaError_t cudaDeviceCanAccessPeer(int* yes, int device, int peer) {
  return FIRN_CALL_BARE(cuDeviceCanAccessPeer, yes, device, peer);
}
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int from, int to) {
  return FIRN_CALL_BARE(cuDeviceGetP2PAttribute, value,
                        static_cast<CUdevice_P2PAttribute>(attribute), from, to);
}

static cudaError_t peer_context(int peer, CUcontext* context) {
  int device = 0;
  cudaError_t error = current_device(&device);
  if (error == cudaSuccess) error = enter_device(peer);
  if (error == cudaSuccess) {
    error = static_cast<cudaError_t>(driver().cuCtxGetCurrent(context));
    const cudaError_t back = enter_device(device);
    if (error == cudaSuccess) error = back;
  }
  return error;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  CUcontext context = nullptr;
  const cudaError_t error = peer_context(peer, &context);
  return error != cudaSuccess ? keep(error) : FIRN_CALL(cuCtxEnablePeerAccess, context, flags);
}
cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  CUcontext context = nullptr;
  const cudaError_t error = peer_context(peer, &context);
  return error != cudaSuccess ? keep(error) : FIRN_CALL(cuCtxDisablePeerAccess, context);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return FIRN_CALL(cuCtxGetStreamPriorityRange, least, greatest);
}
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  return FIRN_CALL(cuCtxGetLimit, value, static_cast<CUlimit>(limit));
}
cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  return FIRN_CALL(cuCtxSetLimit, static_cast<CUlimit>(limit), value);
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return FIRN_CALL_BARE(cuDeviceGetDefaultMemPool, pool, device);
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  return FIRN_CALL_BARE(cuDeviceGetMemPool, pool, device);
}
cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  return FIRN_CALL_BARE(cuDeviceSetMemPool, device, pool);
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** pointer, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
  return entry_point(symbol, pointer, CUDART_VERSION, flags, status);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** pointer, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* status) {
  return entry_point(symbol, pointer, version, flags, status);
}

cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

}  // extern "C"
