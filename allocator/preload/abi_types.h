// Types of the driver's documented ABI that memory, copies, launches and graphs are told with, as
// far as handlers look into them. What they only pass on is void*. Owns nothing.
// tests/allocator/preload/abi_test.cpp compares sizes and offsets with the real <cuda.h>.
#pragma once

#include <cstddef>
#include <cstdint>

#include "firn/cuda_abi.h"

extern "C" {

typedef struct CUmemPoolHandle_st* CUmemoryPool;
typedef struct CUgraph_st* CUgraph;
typedef struct CUgraphNode_st* CUgraphNode;
typedef struct CUgraphExec_st* CUgraphExec;
typedef struct CUarray_st* CUarray;

typedef struct CUlaunchConfig_st {
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  CUstream hStream;
  void* attrs;
  unsigned numAttrs;
} CUlaunchConfig;

typedef struct CUDA_MEMCPY2D_st {
  size_t srcXInBytes, srcY;
  unsigned srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  size_t srcPitch;
  size_t dstXInBytes, dstY;
  unsigned dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  size_t dstPitch;
  size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

typedef struct CUDA_MEMCPY3D_st {
  size_t srcXInBytes, srcY, srcZ, srcLOD;
  unsigned srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  void* reserved0;  // CUDA_MEMCPY3D_PEER: srcContext
  size_t srcPitch, srcHeight;
  size_t dstXInBytes, dstY, dstZ, dstLOD;
  unsigned dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  void* reserved1;  // CUDA_MEMCPY3D_PEER: dstContext
  size_t dstPitch, dstHeight;
  size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;
typedef CUDA_MEMCPY3D CUDA_MEMCPY3D_PEER;

typedef struct CUmemcpy3DOperand_st {
  int type;  // 1: memory, 2: an array
  CUdeviceptr ptr;
  size_t rowLength, layerHeight;
  CUmemLocation locHint;
} CUmemcpy3DOperand;

typedef struct CUDA_MEMCPY3D_BATCH_OP_st {
  CUmemcpy3DOperand src, dst;
  size_t width, height, depth;  // the width in bytes, or in an array's elements
  int srcAccessOrder;
  unsigned flags;
} CUDA_MEMCPY3D_BATCH_OP;

typedef struct CUmemPoolProps_st {
  CUmemAllocationType allocType;
  CUmemAllocationHandleType handleTypes;
  CUmemLocation location;
  void* win32SecurityAttributes;
  size_t maxSize;
  unsigned short usage;
  unsigned char reserved[54];
} CUmemPoolProps;

typedef struct CUDA_KERNEL_NODE_PARAMS_st {
  CUfunction func;
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  void** kernelParams;
  void** extra;
  CUkernel kern;  // from _v2 on
  CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct CUDA_MEMSET_NODE_PARAMS_st {
  CUdeviceptr dst;
  size_t pitch;
  unsigned value, elementSize;
  size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;

typedef struct CUstreamMemOp_st {  // CUstreamBatchMemOpParams: of a wait or a write
  unsigned operation;
  CUdeviceptr address;
  uint64_t value;
  unsigned flags;
  CUdeviceptr alias;
  uint64_t padding;
} CUstreamBatchMemOpParams;

}  // extern "C"

namespace firn::preload {

enum MemoryType : unsigned { memory_host = 1, memory_device = 2, memory_array = 3,
                             memory_unified = 4 };

}  // namespace firn::preload
