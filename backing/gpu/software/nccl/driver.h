// The driver's entries that the software NCCL uses, found as the real one finds them: the
// libcuda.so.1 that the loader has, and there cuGetProcAddress. So a library in front of the driver
// sees the launches. Owns the table (never closed). Locks: none to be held.
#pragma once

#include <cuda.h>

#include "backing/gpu/software/nccl/abi.h"
#include "firn/software_gpu.h"

namespace firn::nccl {

#define FIRN_NCCL_DRIVER(X)                                                                   \
  X(cuInit) X(cuCtxGetCurrent) X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuCtxGetDevice)       \
  X(cuDeviceGetUuid) X(cuDevicePrimaryCtxRetain) X(cuEventCreate) X(cuEventDestroy)           \
  X(cuEventQuery) X(cuEventRecord) X(cuStreamWaitEvent) X(cuStreamIsCapturing)                \
  X(cuLaunchKernelEx) X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) X(cuMemCreate)             \
  X(cuMemRelease) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap)        \
  X(cuMemSetAccess) X(cuMemGetAllocationGranularity) X(cuGetErrorName)

/// The entries as CUDA 12 has them: cuCtxGetDevice takes no context yet.
struct Driver {
#define FIRN_NCCL_MEMBER(entry) decltype(&::entry) entry = nullptr;
  FIRN_NCCL_DRIVER(FIRN_NCCL_MEMBER)
#undef FIRN_NCCL_MEMBER
  decltype(&::firnGpuKernelCreate) kernel_create = nullptr;
  bool complete = false;
};

/// The table; `complete` is false where a function is missing, which last_error() then names.
const Driver& driver();

/// The calling thread's last error in words (ncclGetLastError).
const char* last_error();
ncclResult_t fail(ncclResult_t result, const char* format, ...)
    __attribute__((format(printf, 2, 3)));
/// ncclSuccess, or ncclUnhandledCudaError with the entry and the driver's word for it.
ncclResult_t checked(const char* entry, CUresult result);

/// `context` is the calling thread's, until the end.
class InContext {
 public:
  explicit InContext(CUcontext context);
  ~InContext();
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  bool pushed_;
};

}  // namespace firn::nccl

/// Returns the result of `expression` from the calling function, unless that is ncclSuccess.
#define FIRN_NCCL_TRY(expression)                                          \
  do {                                                                     \
    if (const ncclResult_t tried_ = (expression); tried_ != ncclSuccess) return tried_; \
  } while (false)
