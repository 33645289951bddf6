// The software CUDA runtime: the declarations that its files share. It stands on whatever
// libcuda.so.1 the loader finds (dlopen, then dlsym of cuGetProcAddress_v2, as the real one does)
// and knows nothing of the software GPU but two optional entries of firn/software_gpu.h.
//
// Owns: the table of driver entries, the primary contexts retained, each thread's device and last
// error. Locks: none to be held by callers; primary contexts are retained under one mutex.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace firn::cudart {

// Every driver entry used. An entry that the driver lacks stays null: calls of it answer
// cudaErrorNotSupported and name it once.
// clang-format off
#define FIRN_CUDART_DRIVER(X)                                                                   \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString) X(cuDeviceGetCount)     \
  X(cuDeviceGet) X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDeviceTotalMem)                 \
  X(cuDeviceGetUuid) X(cuDeviceGetPCIBusId) X(cuDeviceGetByPCIBusId) X(cuDeviceCanAccessPeer)   \
  X(cuDeviceGetP2PAttribute) X(cuDeviceGetDefaultMemPool) X(cuDeviceGetMemPool)                 \
  X(cuDeviceSetMemPool) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxReset)                  \
  X(cuDevicePrimaryCtxGetState) X(cuDevicePrimaryCtxSetFlags) X(cuCtxGetCurrent)                \
  X(cuCtxSetCurrent) X(cuCtxGetDevice) X(cuCtxSynchronize) X(cuCtxEnablePeerAccess)             \
  X(cuCtxDisablePeerAccess) X(cuCtxGetStreamPriorityRange) X(cuCtxGetLimit) X(cuCtxSetLimit)    \
  X(cuMemGetInfo) X(cuMemAlloc) X(cuMemAllocPitch) X(cuMemAllocManaged) X(cuMemFree)            \
  X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemHostRegister) X(cuMemHostUnregister)                \
  X(cuMemHostGetDevicePointer) X(cuMemHostGetFlags) X(cuMemcpy) X(cuMemcpyAsync)                \
  X(cuMemcpyHtoD) X(cuMemcpyDtoH) X(cuMemcpyDtoD) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync)     \
  X(cuMemcpyDtoDAsync) X(cuMemcpyPeer) X(cuMemcpyPeerAsync) X(cuMemcpy2D) X(cuMemcpy2DAsync)    \
  X(cuMemsetD8) X(cuMemsetD8Async) X(cuMemsetD2D8) X(cuMemsetD2D8Async) X(cuMemAllocAsync)      \
  X(cuMemAllocFromPoolAsync) X(cuMemFreeAsync) X(cuMemPoolCreate) X(cuMemPoolDestroy)           \
  X(cuMemPoolGetAttribute) X(cuMemPoolSetAttribute) X(cuMemPoolSetAccess)                       \
  X(cuMemPoolGetAccess) X(cuMemPoolTrimTo) X(cuPointerGetAttribute) X(cuIpcGetMemHandle)        \
  X(cuMemAdvise) X(cuMemPrefetchAsync) X(cuMemPrefetchBatchAsync)                               \
  X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle) X(cuIpcGetEventHandle) X(cuIpcOpenEventHandle)   \
  X(cuStreamCreate) X(cuStreamCreateWithPriority) X(cuStreamDestroy) X(cuStreamQuery)           \
  X(cuStreamSynchronize) X(cuStreamWaitEvent) X(cuStreamGetPriority) X(cuStreamGetFlags)        \
  X(cuStreamGetId) X(cuStreamGetDevice) X(cuStreamAddCallback) X(cuStreamBeginCapture)          \
  X(cuStreamEndCapture) X(cuStreamIsCapturing) X(cuStreamGetCaptureInfo)                        \
  X(cuStreamUpdateCaptureDependencies) X(cuThreadExchangeStreamCaptureMode)                     \
  X(cuLaunchHostFunc) X(cuEventCreate) X(cuEventDestroy) X(cuEventQuery) X(cuEventRecord)       \
  X(cuEventRecordWithFlags) X(cuEventSynchronize) X(cuEventElapsedTime) X(cuGraphCreate)        \
  X(cuGraphDestroy) X(cuGraphClone) X(cuGraphGetNodes) X(cuGraphGetRootNodes)                   \
  X(cuGraphNodeGetType) X(cuGraphNodeGetDependencies) X(cuGraphAddEmptyNode)                    \
  X(cuGraphInstantiate) X(cuGraphLaunch) X(cuGraphUpload) X(cuGraphExecDestroy)                 \
  X(cuGraphDebugDotPrint)
// clang-format on

// `#entry` is the base name that cuGetProcAddress wants; `entry` itself expands to the versioned
// name that <cuda.h> declares.
struct Driver {
#define FIRN_CUDART_MEMBER(entry) decltype(&::entry) entry = nullptr;
  FIRN_CUDART_DRIVER(FIRN_CUDART_MEMBER)
#undef FIRN_CUDART_MEMBER
  decltype(&::cuGetProcAddress) get_proc_address = nullptr;
  int (*busy)(void* stream, unsigned long ns) = nullptr;  // firnGpuBusy; null on a real GPU
  cudaError_t status = cudaErrorInsufficientDriver;       // of loading and cuInit
};

/// The table, loaded at the first call; its status says whether it can be used.
const Driver& driver();

/// The devices that CUDA_VISIBLE_DEVICES leaves: the first ones of the driver's, as many as are
/// named, since the software GPU's devices are all alike. (A real driver obeys the variable
/// itself.)
cudaError_t device_count(int* count);

/// Remembers `error` as the thread's last one, unless it is success, and returns it.
cudaError_t keep(cudaError_t error);
/// The runtime's codes are the driver's.
inline cudaError_t keep(CUresult result) { return keep(static_cast<cudaError_t>(result)); }

/// cudaErrorNotSupported, and `name` on standard error the first time it is asked for.
cudaError_t not_supported(const char* name);

/// Loads the driver and makes sure that the thread has a current context: the one it has, else the
/// primary context of its device.
cudaError_t enter();
/// Makes `device`'s primary context current.
cudaError_t enter_device(int device);
/// After a reset of `device`: its primary context is to be retained anew.
void forget_context(int device);
/// The device of the current context, else the thread's; never makes a context.
cudaError_t current_device(int* device);

/// A call of a driver entry: not supported where the driver lacks it.
template <class... Parameters, class... Arguments>
cudaError_t call(const char* name, CUresult (*entry)(Parameters...), Arguments... arguments) {
  if (entry == nullptr) return keep(not_supported(name));
  return keep(entry(arguments...));
}

// FIRN_CALL(cuMemFree, address): enters, then calls. FIRN_CALL_BARE: no context is needed.
#define FIRN_CALL_BARE(entry, ...) \
  (driver().status != cudaSuccess  \
       ? keep(driver().status)     \
       : ::firn::cudart::call(#entry, driver().entry __VA_OPT__(, ) __VA_ARGS__))
#define FIRN_CALL(entry, ...)                                \
  ([&]() -> cudaError_t {                                    \
    const cudaError_t entered = enter();                     \
    if (entered != cudaSuccess) return keep(entered);        \
    return FIRN_CALL_BARE(entry __VA_OPT__(, ) __VA_ARGS__); \
  }())

inline CUdeviceptr address_of(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

}  // namespace firn::cudart
