// The software libnvidia-ml.so.1: NVML's answers about the software GPU. PyTorch asks it how many
// devices there are, how much of them is in use and, before segments can expand, for a fabric. It
// reads the same settings as the driver (FIRN_GPU_DEVICES, FIRN_GPU_MEMORY) and starts no driver,
// like the real one; of a device's memory it knows this process's use. It makes up no figures:
// entries without one are missing, or "not supported".
//
// Owns: nothing. Locks: none; from any thread, and in the child of a fork.
#include "backing/gpu/software/nvml/abi.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "backing/gpu/software/identity.h"
#include "backing/gpu/software/size_words.h"
#include "firn/software_gpu.h"

#define FIRN_NVML extern "C" __attribute__((visibility("default")))

namespace {

using namespace firn::software;

std::atomic<int> users{0};  // of nvmlInit

unsigned device_count() {
  const char* words = std::getenv("FIRN_GPU_DEVICES");
  const long count = words && *words ? std::strtol(words, nullptr, 10) : 1;
  return count >= 1 && count <= devices_max ? static_cast<unsigned>(count) : 1;
}

// A handle is a number other than a null pointer's.
nvmlDevice_t handle_of(unsigned index) {
  return reinterpret_cast<nvmlDevice_t>(static_cast<uintptr_t>(index + 1));
}
bool index_of(nvmlDevice_t device, unsigned* index) {
  const auto number = reinterpret_cast<uintptr_t>(device);
  *index = static_cast<unsigned>(number - 1);
  return number >= 1 && number <= device_count();
}

template <class Body>
nvmlReturn_t of_device(nvmlDevice_t device, const void* out, Body&& body) {
  if (users <= 0) return NVML_ERROR_UNINITIALIZED;
  unsigned index = 0;
  if (!out || !index_of(device, &index)) return NVML_ERROR_INVALID_ARGUMENT;
  return body(index);
}

nvmlReturn_t write_words(char* out, unsigned length, const char* words) {
  if (std::strlen(words) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::strcpy(out, words);
  return NVML_SUCCESS;
}

uint64_t total_bytes() {
  double bytes = 0;
  const char* words = std::getenv("FIRN_GPU_MEMORY");
  if (words && *words && parse_size(words, &bytes))
    return static_cast<uint64_t>(bytes);
  return memory_bytes_default;
}

/// By the software driver's own count, where there is one in this process.
uint64_t used_bytes(unsigned index) {
  using Counts = int (*)(int, FirnGpuCounts*);
  const auto counts = reinterpret_cast<Counts>(::dlsym(RTLD_DEFAULT, "firnGpuCounts"));
  FirnGpuCounts found{};
  if (!counts || counts(static_cast<int>(index), &found) != 0) return 0;
  return found.frame_bytes + found.malloc_bytes;
}

template <class Info>
nvmlReturn_t running(nvmlDevice_t device, unsigned* count, Info* infos) {
  return of_device(device, count, [&](unsigned index) {
    const uint64_t used = used_bytes(index);
    const unsigned room = *count;
    *count = used ? 1 : 0;
    if (!used) return NVML_SUCCESS;
    if (room == 0) return NVML_ERROR_INSUFFICIENT_SIZE;
    if (!infos) return NVML_ERROR_INVALID_ARGUMENT;
    infos[0] = Info{};
    infos[0].pid = static_cast<unsigned>(::getpid());
    infos[0].usedGpuMemory = used;
    if constexpr (requires { infos[0].gpuInstanceId; })
      infos[0].gpuInstanceId = infos[0].computeInstanceId = ~0u;
    return NVML_SUCCESS;
  });
}

}  // namespace

FIRN_NVML nvmlReturn_t nvmlInit_v2() {
  ++users;
  return NVML_SUCCESS;
}
FIRN_NVML nvmlReturn_t nvmlInit() { return nvmlInit_v2(); }
FIRN_NVML nvmlReturn_t nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }

FIRN_NVML nvmlReturn_t nvmlShutdown() {
  int before = users;
  while (before > 0 && !users.compare_exchange_weak(before, before - 1)) {
  }
  return before > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

FIRN_NVML const char* nvmlErrorString(nvmlReturn_t error) {
  switch (error) {
    case NVML_SUCCESS: return "The operation was successful";
    case NVML_ERROR_UNINITIALIZED: return "NVML was not first initialized with nvmlInit()";
    case NVML_ERROR_INVALID_ARGUMENT: return "A supplied argument is invalid";
    case NVML_ERROR_NOT_SUPPORTED:
      return "The requested operation is not available on the software GPU";
    case NVML_ERROR_NOT_FOUND: return "A query to find an object was unsuccessful";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "An input argument is not large enough";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "The provided version is invalid";
    default: return "An internal driver error occurred";
  }
}

FIRN_NVML nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (!version) return NVML_ERROR_INVALID_ARGUMENT;
  *version = driver_version;
  return NVML_SUCCESS;
}
FIRN_NVML nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}

FIRN_NVML nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  if (users <= 0) return NVML_ERROR_UNINITIALIZED;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  *count = device_count();
  return NVML_SUCCESS;
}
FIRN_NVML nvmlReturn_t nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

FIRN_NVML nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  if (users <= 0) return NVML_ERROR_UNINITIALIZED;
  if (!device || index >= device_count()) return NVML_ERROR_INVALID_ARGUMENT;
  *device = handle_of(index);
  return NVML_SUCCESS;
}
FIRN_NVML nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/// "domain:bus:device.function", as the driver and the runtime write it; the domain may have eight
/// digits.
FIRN_NVML nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* id, nvmlDevice_t* device) {
  if (users <= 0) return NVML_ERROR_UNINITIALIZED;
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  if (!id || !device) return NVML_ERROR_INVALID_ARGUMENT;
  if (std::sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (domain || slot || function || bus < 1 || bus > device_count()) return NVML_ERROR_NOT_FOUND;
  *device = handle_of(bus - 1);
  return NVML_SUCCESS;
}
FIRN_NVML nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* id, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

FIRN_NVML nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned* index) {
  return of_device(device, index, [&](unsigned found) {
    *index = found;
    return NVML_SUCCESS;
  });
}

FIRN_NVML nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned length) {
  return of_device(device, name,
                   [&](unsigned) { return write_words(name, length, device_name); });
}

/// The bytes of cuDeviceGetUuid in NVML's form.
FIRN_NVML nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned length) {
  return of_device(device, uuid, [&](unsigned index) {
    unsigned char bytes[16];
    write_uuid(bytes, static_cast<int>(index));
    char words[48] = "GPU-";
    size_t at = 4;
    for (int i = 0; i < 16; ++i) {
      if (i == 4 || i == 6 || i == 8 || i == 10) words[at++] = '-';
      at += static_cast<size_t>(std::snprintf(words + at, sizeof words - at, "%02x", bytes[i]));
    }
    return write_words(uuid, length, words);
  });
}

FIRN_NVML nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* info) {
  return of_device(device, info, [&](unsigned index) {
    *info = nvmlPciInfo_t{};
    info->bus = index + 1;
    write_bus_id(info->busIdLegacy, sizeof info->busIdLegacy, static_cast<int>(index));
    write_bus_id(info->busId, sizeof info->busId, static_cast<int>(index), "00000000");
    return NVML_SUCCESS;
  });
}

FIRN_NVML nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  return of_device(device, memory, [&](unsigned index) {
    const uint64_t total = total_bytes(), used = used_bytes(index);
    *memory = {total, total - used, used};
    return NVML_SUCCESS;
  });
}
FIRN_NVML nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  return of_device(device, memory, [&](unsigned index) {
    if (memory->version != nvml_version<nvmlMemory_v2_t>(2))
      return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const uint64_t total = total_bytes(), used = used_bytes(index);
    *memory = {memory->version, total, 0, total - used, used};
    return NVML_SUCCESS;
  });
}

FIRN_NVML nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned* count,
                                                            nvmlProcessInfo_v1_t* infos) {
  return running(device, count, infos);
}
FIRN_NVML nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device,
                                                               unsigned* count,
                                                               nvmlProcessInfo_t* infos) {
  return running(device, count, infos);
}
FIRN_NVML nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
                                                               unsigned* count,
                                                               nvmlProcessInfo_t* infos) {
  return running(device, count, infos);
}

FIRN_NVML nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned,
                                                           int* type) {
  return of_device(device, type, [](unsigned) { return NVML_ERROR_NOT_SUPPORTED; });
}
FIRN_NVML nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned,
                                                           nvmlPciInfo_t* info) {
  return of_device(device, info, [](unsigned) { return NVML_ERROR_NOT_SUPPORTED; });
}

/// The answer of a GPU without a fabric.
FIRN_NVML nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device,
                                                   nvmlGpuFabricInfoV_t* info) {
  return of_device(device, info, [&](unsigned) {
    const unsigned version = info->version;
    if (version >> 24 < 2 || version >> 24 > 3) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *info = nvmlGpuFabricInfoV_t{};
    info->version = version;
    return NVML_SUCCESS;
  });
}
