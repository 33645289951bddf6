// The part of NVML's binary interface that the software GPU answers: names, values and layouts as
// NVIDIA documents them (NVML API reference). Firn does not need a toolkit's own nvml.h.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

enum nvmlReturn_t : int {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
  NVML_ERROR_UNKNOWN = 999,
};

typedef struct nvmlDevice_st* nvmlDevice_t;

struct nvmlMemory_t {
  unsigned long long total, free, used;  // bytes
};
struct nvmlMemory_v2_t {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct nvmlProcessInfo_v1_t {
  unsigned pid;
  unsigned long long usedGpuMemory;
};
struct nvmlProcessInfo_t {
  unsigned pid;
  unsigned long long usedGpuMemory;
  unsigned gpuInstanceId, computeInstanceId;  // 0xFFFFFFFF: the device is not divided
};
struct nvmlPciInfo_t {
  char busIdLegacy[16];
  unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
};
struct nvmlGpuFabricInfoV_t {  // its second version; the third has one byte more at its end
  unsigned version;
  unsigned char clusterUuid[16];
  nvmlReturn_t status;
  unsigned cliqueId;
  unsigned char state;  // 0: there is no fabric
  unsigned healthMask;
};
}

/// A structure's `version`: its size, and the number above it.
template <class T>
constexpr unsigned nvml_version(unsigned number) {
  return static_cast<unsigned>(sizeof(T)) | number << 24;
}

static_assert(sizeof(nvmlMemory_v2_t) == 40 && sizeof(nvmlProcessInfo_t) == 24);
static_assert(sizeof(nvmlPciInfo_t) == 68 && sizeof(nvmlGpuFabricInfoV_t) == 36);
