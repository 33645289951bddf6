// The part of the CUDA driver's documented ABI that the software GPU answers beyond what Firn calls
// itself (firn/cuda_abi.h). Owns nothing. tests/backing/gpu/cuda_abi_test.cpp compares sizes,
// offsets and values with the real <cuda.h>.
#pragma once

#ifdef FIRN_CUDA_HEADERS
#error "the software GPU is compiled against firn/cuda_abi.h, never against the real header"
#endif
#include "firn/cuda_types.h"

extern "C" {

typedef size_t (*CUoccupancyB2DSize)(int block_size);
typedef struct CUipcEventHandle_st {
  char reserved[64];
} CUipcEventHandle;

}  // extern "C"

namespace firn::software {

inline constexpr unsigned event_interprocess = 4;  // CU_EVENT_INTERPROCESS
using enum MemoryType;
using enum NodeType;

#define FIRN_GPU_RESULT(name, value) inline constexpr CUresult name = static_cast<CUresult>(value)
FIRN_GPU_RESULT(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, 708);
FIRN_GPU_RESULT(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902);
FIRN_GPU_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903);
FIRN_GPU_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904);
FIRN_GPU_RESULT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905);
FIRN_GPU_RESULT(CUDA_ERROR_CAPTURED_EVENT, 907);
FIRN_GPU_RESULT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908);
#undef FIRN_GPU_RESULT

enum CaptureMode : int { capture_global = 0, capture_thread_local = 1, capture_relaxed = 2 };

enum PointerAttribute : int {
  pointer_context = 1,
  pointer_memory_type = 2,
  pointer_device_pointer = 3,
  pointer_host_pointer = 4,
  pointer_sync_memops = 6,
  pointer_buffer_id = 7,
  pointer_is_managed = 8,
  pointer_device_ordinal = 9,
  pointer_is_legacy_ipc_capable = 10,
  pointer_range_start = 11,
  pointer_range_bytes = 12,
  pointer_mapped = 13,
  pointer_allowed_handle_types = 14,
  pointer_is_rdma_capable = 15,
  pointer_access_flags = 16,
  pointer_mempool = 17,
  pointer_mapping_bytes = 18,
  pointer_mapping_base = 19,
  pointer_memory_block_id = 20,
  pointer_is_decompress_capable = 21,
};

enum PoolAttribute : int {
  pool_reuse_follow_event = 1,
  pool_reuse_opportunistic = 2,
  pool_reuse_internal = 3,
  pool_release_threshold = 4,
  pool_reserved_current = 5,
  pool_reserved_high = 6,
  pool_used_current = 7,
  pool_used_high = 8,
};

/// Markers of cuLaunchKernel's `extra` list.
inline void* const launch_param_end = nullptr;
inline void* const launch_param_buffer_pointer = reinterpret_cast<void*>(1);
inline void* const launch_param_buffer_bytes = reinterpret_cast<void*>(2);

}  // namespace firn::software
