// The seam to the GPU: a table of documented CUDA driver entry points, opened from a library, the
// real libcuda.so.1 or the software GPU of the same soname, so that one code path serves both.
//
// Contract of use (what the real driver wants, and what the software GPU aborts on):
//  - the device's context is current in the calling thread (Driver::ContextGuard);
//  - a mapping starts at its reservation's granule, frame offset 0, and is followed by
//    mem_set_access;
//  - mem_unmap only after the events of every stream that used the memory have completed;
//  - a frame (handle) is released only when unmapped; handles, streams, events are not used after
//    their destruction.
#pragma once

#include <memory>
#include <string>

#include "firn/cuda_abi.h"
#include "firn/result.h"

namespace firn {

// X(member, symbol, parameters): member names drop "cu" and version suffixes, in snake_case. The
// second word is the symbol as exported (dlsym), with its version suffix.
#define FIRN_DRIVER_ENTRIES(X)                                                                   \
  X(init, cuInit, (unsigned flags))                                                              \
  X(driver_get_version, cuDriverGetVersion, (int* version))                                      \
  X(get_error_name, cuGetErrorName, (CUresult error, const char** name))                         \
  X(get_error_string, cuGetErrorString, (CUresult error, const char** text))                     \
  X(device_get_count, cuDeviceGetCount, (int* count))                                            \
  X(device_get, cuDeviceGet, (CUdevice * device, int ordinal))                                   \
  X(device_get_name, cuDeviceGetName, (char* name, int length, CUdevice device))                 \
  X(device_get_pci_bus_id, cuDeviceGetPCIBusId, (char* id, int length, CUdevice device))         \
  X(device_get_attribute, cuDeviceGetAttribute,                                                  \
    (int* value, CUdevice_attribute attribute, CUdevice device))                                 \
  X(device_total_mem, cuDeviceTotalMem_v2, (size_t* bytes, CUdevice device))                     \
  X(device_primary_ctx_retain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device)) \
  X(device_primary_ctx_release, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                 \
  X(ctx_push_current, cuCtxPushCurrent_v2, (CUcontext context))                                  \
  X(ctx_pop_current, cuCtxPopCurrent_v2, (CUcontext * context))                                  \
  X(ctx_set_current, cuCtxSetCurrent, (CUcontext context))                                       \
  X(ctx_get_current, cuCtxGetCurrent, (CUcontext * context))                                     \
  X(ctx_synchronize, cuCtxSynchronize, ())                                                       \
  X(mem_get_info, cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes))                  \
  X(mem_get_allocation_granularity, cuMemGetAllocationGranularity,                               \
    (size_t* granularity, const CUmemAllocationProp* prop,                                       \
     CUmemAllocationGranularity_flags option))                                                   \
  X(mem_address_reserve, cuMemAddressReserve,                                                    \
    (CUdeviceptr * address, size_t bytes, size_t alignment, CUdeviceptr hint,                    \
     unsigned long long flags))                                                                  \
  X(mem_address_free, cuMemAddressFree, (CUdeviceptr address, size_t bytes))                     \
  X(mem_create, cuMemCreate,                                                                     \
    (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp* prop,       \
     unsigned long long flags))                                                                  \
  X(mem_release, cuMemRelease, (CUmemGenericAllocationHandle handle))                            \
  X(mem_map, cuMemMap,                                                                           \
    (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,      \
     unsigned long long flags))                                                                  \
  X(mem_unmap, cuMemUnmap, (CUdeviceptr address, size_t bytes))                                  \
  X(mem_set_access, cuMemSetAccess,                                                              \
    (CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count))            \
  X(mem_export_to_shareable_handle, cuMemExportToShareableHandle,                                \
    (void* shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,       \
     unsigned long long flags))                                                                  \
  X(mem_import_from_shareable_handle, cuMemImportFromShareableHandle,                            \
    (CUmemGenericAllocationHandle * handle, void* shareable, CUmemAllocationHandleType type))    \
  X(mem_host_register, cuMemHostRegister_v2, (void* address, size_t bytes, unsigned flags))      \
  X(mem_host_unregister, cuMemHostUnregister, (void* address))                                   \
  X(memcpy_dtoh_async, cuMemcpyDtoHAsync_v2,                                                     \
    (void* to, CUdeviceptr from, size_t bytes, CUstream stream))                                 \
  X(memcpy_htod_async, cuMemcpyHtoDAsync_v2,                                                     \
    (CUdeviceptr to, const void* from, size_t bytes, CUstream stream))                           \
  X(memcpy_async, cuMemcpyAsync,                                                                 \
    (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                           \
  X(launch_host_func, cuLaunchHostFunc,                                                          \
    (CUstream stream, void (*function)(void* data), void* data))                                 \
  X(memcpy_dtod_async, cuMemcpyDtoDAsync_v2,                                                     \
    (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                           \
  X(memset_d8_async, cuMemsetD8Async,                                                            \
    (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream))                        \
  X(stream_create, cuStreamCreate, (CUstream * stream, unsigned flags))                          \
  X(stream_destroy, cuStreamDestroy_v2, (CUstream stream))                                       \
  X(stream_query, cuStreamQuery, (CUstream stream))                                              \
  X(stream_synchronize, cuStreamSynchronize, (CUstream stream))                                  \
  X(stream_wait_event, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))      \
  X(stream_is_capturing, cuStreamIsCapturing,                                                    \
    (CUstream stream, CUstreamCaptureStatus * status))                                           \
  X(thread_exchange_stream_capture_mode, cuThreadExchangeStreamCaptureMode,                      \
    (CUstreamCaptureMode * mode))                                                                \
  X(event_create, cuEventCreate, (CUevent * event, unsigned flags))                              \
  X(event_destroy, cuEventDestroy_v2, (CUevent event))                                           \
  X(event_record, cuEventRecord, (CUevent event, CUstream stream))                               \
  X(event_query, cuEventQuery, (CUevent event))                                                  \
  X(event_synchronize, cuEventSynchronize, (CUevent event))                                      \
  X(event_elapsed_time, cuEventElapsedTime, (float* ms, CUevent begin, CUevent end))

struct Driver {
#define FIRN_DRIVER_MEMBER(member, symbol, parameters) CUresult(*member) parameters = nullptr;
  FIRN_DRIVER_ENTRIES(FIRN_DRIVER_MEMBER)
#undef FIRN_DRIVER_MEMBER

  std::string library;   // path it was opened from
  bool software = false; // the software GPU (it exports firnGpuConfigure)
  void* handle = nullptr;  // dlopen's; kept open for the life of the process
  /// firn_stand_in() where Firn's stand-in is in front (allocator/preload/stand_in.h; these entries
  /// bypass it); null: it is not.
  void* (*stand_in)(const char* what) = nullptr;

  /// Makes `context` current in this thread for its scope, then restores the one before. Calls that
  /// are no work (queries, mappings) do not invalidate a capture meanwhile, in any thread. If the
  /// driver refuses (a context that was destroyed, a callback of the program's, exit), the current
  /// context stays as it was, and result() says why.
  class [[nodiscard]] ContextGuard {
   public:
    ContextGuard(const Driver& driver, CUcontext context);
    ~ContextGuard();
    CUresult result() const { return result_; }
    ContextGuard(const ContextGuard&) = delete;
    ContextGuard& operator=(const ContextGuard&) = delete;

   private:
    const Driver& driver_;
    CUresult result_;
    bool relaxed_ = false;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // then: what it was
  };

  /// An Error with the driver's own name and words for `result`, e.g.
  /// "cuMemMap: CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
  Error error(const char* entry, CUresult result,
              std::source_location where = std::source_location::current()) const;
};

/// Opens `library` ("libcuda.so.1" when empty: whatever the loader finds, real or software) and
/// fills the table by dlsym of the versioned names (driver_table.cpp says why). not_supported
/// names the entry that is missing or the library that could not be opened. Does not call cuInit.
Result<std::unique_ptr<Driver>> open_driver(const std::string& library = {});

}  // namespace firn
