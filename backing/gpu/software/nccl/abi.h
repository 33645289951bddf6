// NCCL's binary interface, as its documentation and the releases from 2.27 on have it: types and
// values alone. Owns nothing. (nccl.h itself comes with NCCL, which a machine that builds Firn need
// not have.) tests/torch/ranks/test_nccl.py compares the values with the wheel's header.
#pragma once

#include <cuda.h>

#include <climits>
#include <cstddef>

extern "C" {

struct ncclComm;
typedef struct ncclComm* ncclComm_t;

typedef struct {
  char internal[128];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
} ncclResult_t;

typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,  // and above: made by ncclRedOpCreatePreMulSum
  ncclMaxRedOp = INT_MAX,
} ncclRedOp_t;

typedef enum {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12,
} ncclDataType_t;

typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;

typedef struct {
  size_t size;
  unsigned magic;
  unsigned version;
  float estimatedTime;  // microseconds
} ncclSimInfo_t;

}  // extern "C"

namespace firn::nccl {
inline constexpr int version = 22809;         // the interface that is answered
inline constexpr int no_color = -1;           // NCCL_SPLIT_NOCOLOR
inline constexpr int shrink_abort = 1;        // NCCL_SHRINK_ABORT
inline constexpr unsigned sim_magic = 0x74685283;
}  // namespace firn::nccl
