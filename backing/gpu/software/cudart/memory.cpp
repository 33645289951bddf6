// The software CUDA runtime: memory of device and host, pools, pointers, copies and fills. Owns
// nothing: every call becomes one of the driver's.
#include "backing/gpu/software/cudart/runtime.h"

using namespace firn::cudart;

namespace {

CUmemorytype memory_type(cudaMemcpyKind kind, bool destination) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return CU_MEMORYTYPE_HOST;
    case cudaMemcpyHostToDevice:
      return destination ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    case cudaMemcpyDeviceToHost:
      return destination ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    case cudaMemcpyDeviceToDevice:
      return CU_MEMORYTYPE_DEVICE;
    case cudaMemcpyDefault:
      break;
  }
  return CU_MEMORYTYPE_UNIFIED;
}

CUDA_MEMCPY2D rectangle(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                        size_t width, size_t height, cudaMemcpyKind kind) {
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = memory_type(kind, false);
  copy.srcHost = from;
  copy.srcDevice = address_of(from);
  copy.srcPitch = from_pitch;
  copy.dstMemoryType = memory_type(kind, true);
  copy.dstHost = to;
  copy.dstDevice = address_of(to);
  copy.dstPitch = to_pitch;
  copy.WidthInBytes = width;
  copy.Height = height;
  return copy;
}

// The primary context of `device`; the thread's own stays current.
cudaError_t context_of(int device, CUcontext* context) {
  int before = 0;
  cudaError_t error = current_device(&before);
  if (error == cudaSuccess) error = enter_device(device);
  if (error == cudaSuccess) {
    error = static_cast<cudaError_t>(driver().cuCtxGetCurrent(context));
    const cudaError_t back = enter_device(before);
    if (error == cudaSuccess) error = back;
  }
  return error;
}

CUdeviceptr* out_address(void** pointer) { return reinterpret_cast<CUdeviceptr*>(pointer); }

CUmemLocation place(const cudaMemLocation& location) {
  CUmemLocation same{};
  same.type = static_cast<CUmemLocationType>(location.type);
  same.id = location.id;
  return same;
}

}  // namespace

extern "C" {

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return FIRN_CALL(cuMemGetInfo, free_bytes, total_bytes);
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (bytes == 0) {
    *pointer = nullptr;
    return keep(enter());
  }
  return FIRN_CALL(cuMemAlloc, out_address(pointer), bytes);
}
cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  return FIRN_CALL(cuMemAllocPitch, out_address(pointer), pitch, width, height, 16u);
}
cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned flags) {
  return FIRN_CALL(cuMemAllocManaged, out_address(pointer), bytes, flags);
}
cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t bytes, cudaMemLocation location,
                                 unsigned flags, cudaStream_t stream) {
  return FIRN_CALL(cuMemPrefetchAsync, address_of(pointer), bytes, place(location), flags, stream);
}
cudaError_t cudaMemPrefetchBatchAsync(void** pointers, size_t* bytes, size_t count,
                                      cudaMemLocation* locations, size_t* indices,
                                      size_t location_count, unsigned long long flags,
                                      cudaStream_t stream) {
  static_assert(sizeof(cudaMemLocation) == sizeof(CUmemLocation));
  return FIRN_CALL(cuMemPrefetchBatchAsync, out_address(pointers), bytes, count,
                   reinterpret_cast<CUmemLocation*>(locations), indices, location_count, flags,
                   stream);
}
cudaError_t cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise advice,
                          cudaMemLocation location) {
  return FIRN_CALL(cuMemAdvise, address_of(pointer), bytes, static_cast<CUmem_advise>(advice),
                   place(location));
}
cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return keep(enter());  // the customary way to make a context
  return FIRN_CALL(cuMemFree, address_of(pointer));
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  return FIRN_CALL(cuMemHostAlloc, pointer, bytes, flags);
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, 0);
}
cudaError_t cudaFreeHost(void* pointer) {
  return pointer == nullptr ? cudaSuccess : FIRN_CALL(cuMemFreeHost, pointer);
}
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return FIRN_CALL(cuMemHostRegister, pointer, bytes, flags);
}
cudaError_t cudaHostUnregister(void* pointer) { return FIRN_CALL(cuMemHostUnregister, pointer); }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
  return FIRN_CALL(cuMemHostGetDevicePointer, out_address(device), host, flags);
}
cudaError_t cudaHostGetFlags(unsigned* flags, void* pointer) {
  return FIRN_CALL(cuMemHostGetFlags, flags, pointer);
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  return FIRN_CALL(cuMemAllocAsync, out_address(pointer), bytes, stream);
}
cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  return FIRN_CALL(cuMemAllocFromPoolAsync, out_address(pointer), bytes, pool, stream);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return FIRN_CALL(cuMemFreeAsync, address_of(pointer), stream);
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  return FIRN_CALL(cuMemPoolCreate, pool, reinterpret_cast<const CUmemPoolProps*>(properties));
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) { return FIRN_CALL(cuMemPoolDestroy, pool); }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) {
  return FIRN_CALL(cuMemPoolTrimTo, pool, bytes);
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return FIRN_CALL(cuMemPoolGetAttribute, pool, static_cast<CUmemPool_attribute>(attribute), value);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return FIRN_CALL(cuMemPoolSetAttribute, pool, static_cast<CUmemPool_attribute>(attribute), value);
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access,
                                 size_t count) {
  static_assert(sizeof(cudaMemAccessDesc) == sizeof(CUmemAccessDesc));
  return FIRN_CALL(cuMemPoolSetAccess, pool, reinterpret_cast<const CUmemAccessDesc*>(access),
                   count);
}
cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t pool,
                                 cudaMemLocation* location) {
  static_assert(sizeof(cudaMemLocation) == sizeof(CUmemLocation));
  return FIRN_CALL(cuMemPoolGetAccess, reinterpret_cast<CUmemAccess_flags*>(flags), pool,
                   reinterpret_cast<CUmemLocation*>(location));
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = -2;  // as the real one says of memory it does not know
  attributes->hostPointer = const_cast<void*>(pointer);
  const cudaError_t entered = enter();
  if (entered != cudaSuccess) return keep(entered);
  const Driver& table = driver();
  if (table.cuPointerGetAttribute == nullptr) return keep(not_supported(__func__));
  const CUdeviceptr address = address_of(pointer);
  CUmemorytype type{};
  if (table.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) !=
      CUDA_SUCCESS) {
    return cudaSuccess;  // ordinary host memory
  }
  unsigned managed = 0;
  if (table.cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) !=
      CUDA_SUCCESS) {
    managed = 0;
  }
  int device = 0;
  const CUresult result =
      table.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
  if (result != CUDA_SUCCESS) return keep(result);
  attributes->device = device;
  attributes->type = managed != 0                 ? cudaMemoryTypeManaged
                     : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
                                                  : cudaMemoryTypeDevice;
  attributes->devicePointer = const_cast<void*>(pointer);
  CUdeviceptr mapped = 0;
  if (attributes->type == cudaMemoryTypeHost &&
      table.cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address) ==
          CUDA_SUCCESS) {
    attributes->devicePointer = reinterpret_cast<void*>(mapped);
  }
  if (attributes->type == cudaMemoryTypeDevice) attributes->hostPointer = nullptr;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return keep(enter());
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return FIRN_CALL(cuMemcpyHtoD, address_of(to), from, bytes);
    case cudaMemcpyDeviceToHost:
      return FIRN_CALL(cuMemcpyDtoH, to, address_of(from), bytes);
    case cudaMemcpyDeviceToDevice:
      return FIRN_CALL(cuMemcpyDtoD, address_of(to), address_of(from), bytes);
    default:
      return FIRN_CALL(cuMemcpy, address_of(to), address_of(from), bytes);
  }
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (bytes == 0) return keep(enter());
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return FIRN_CALL(cuMemcpyHtoDAsync, address_of(to), from, bytes, stream);
    case cudaMemcpyDeviceToHost:
      return FIRN_CALL(cuMemcpyDtoHAsync, to, address_of(from), bytes, stream);
    case cudaMemcpyDeviceToDevice:
      return FIRN_CALL(cuMemcpyDtoDAsync, address_of(to), address_of(from), bytes, stream);
    default:
      return FIRN_CALL(cuMemcpyAsync, address_of(to), address_of(from), bytes, stream);
  }
}

cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device,
                           size_t bytes) {
  CUcontext to_context = nullptr;
  CUcontext from_context = nullptr;
  cudaError_t error = context_of(to_device, &to_context);
  if (error == cudaSuccess) error = context_of(from_device, &from_context);
  if (error != cudaSuccess) return keep(error);
  return FIRN_CALL(cuMemcpyPeer, address_of(to), to_context, address_of(from), from_context, bytes);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                size_t bytes, cudaStream_t stream) {
  CUcontext to_context = nullptr;
  CUcontext from_context = nullptr;
  cudaError_t error = context_of(to_device, &to_context);
  if (error == cudaSuccess) error = context_of(from_device, &from_context);
  if (error != cudaSuccess) return keep(error);
  return FIRN_CALL(cuMemcpyPeerAsync, address_of(to), to_context, address_of(from), from_context,
                   bytes, stream);
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
  const CUDA_MEMCPY2D copy = rectangle(to, to_pitch, from, from_pitch, width, height, kind);
  return FIRN_CALL(cuMemcpy2D, &copy);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  const CUDA_MEMCPY2D copy = rectangle(to, to_pitch, from, from_pitch, width, height, kind);
  return FIRN_CALL(cuMemcpy2DAsync, &copy, stream);
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return FIRN_CALL(cuMemsetD8, address_of(to), static_cast<unsigned char>(value), bytes);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return FIRN_CALL(cuMemsetD8Async, address_of(to), static_cast<unsigned char>(value), bytes,
                   stream);
}
cudaError_t cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
  return FIRN_CALL(cuMemsetD2D8, address_of(to), pitch, static_cast<unsigned char>(value), width,
                   height);
}
cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  return FIRN_CALL(cuMemsetD2D8Async, address_of(to), pitch, static_cast<unsigned char>(value),
                   width, height, stream);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  return FIRN_CALL(cuIpcGetMemHandle, reinterpret_cast<CUipcMemHandle*>(handle),
                   address_of(pointer));
}
cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned flags) {
  CUipcMemHandle passed{};
  static_assert(sizeof passed == sizeof handle);
  __builtin_memcpy(&passed, &handle, sizeof passed);
  return FIRN_CALL(cuIpcOpenMemHandle, out_address(pointer), passed, flags);
}
cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  return FIRN_CALL(cuIpcCloseMemHandle, address_of(pointer));
}

}  // extern "C"
