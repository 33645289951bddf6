// The software CUDA runtime's base: finding the driver, the thread's device and context, errors.
// Owns the driver table (never closed) and the primary contexts retained (never released: the
// process's end does).
#include "backing/gpu/software/cudart/runtime.h"

#include <dlfcn.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <sstream>
#include <string>

namespace firn::cudart {
namespace {

constexpr int devices_max = 64;

// The entries as they were before CUDA 13, whose cuCtxGetDevice and cuCtxSynchronize take a context
// under the same base name, unlike what <cuda.h> declares under it.
constexpr int entries_version = 12090;

// The thread's device, and its last error.
thread_local int thread_device = 0;
thread_local cudaError_t thread_error = cudaSuccess;

std::array<std::atomic<CUcontext>, devices_max> primary_contexts{};
std::mutex primary_mutex;

template <class Function>
void resolve(const Driver& table, void* library, const char* base, const char* exported,
             Function** member) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult why{};
  if (table.get_proc_address(base, &found, entries_version, CU_GET_PROC_ADDRESS_DEFAULT, &why) !=
      CUDA_SUCCESS) {
    found = nullptr;
  }
  if (found == nullptr) found = dlsym(library, exported);
  *member = reinterpret_cast<Function*>(found);
}

Driver load() {
  Driver table;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return table;
  table.get_proc_address =
      reinterpret_cast<decltype(&::cuGetProcAddress)>(dlsym(library, "cuGetProcAddress_v2"));
  if (table.get_proc_address == nullptr) return table;
#define FIRN_TEXT_OF(text) #text
#define FIRN_TEXT(text) FIRN_TEXT_OF(text)
#define FIRN_CUDART_RESOLVE(entry) resolve(table, library, #entry, FIRN_TEXT(entry), &table.entry);
  FIRN_CUDART_DRIVER(FIRN_CUDART_RESOLVE)
#undef FIRN_CUDART_RESOLVE
  table.busy = reinterpret_cast<decltype(table.busy)>(dlsym(library, "firnGpuBusy"));
  if (table.cuInit == nullptr || table.cuCtxGetCurrent == nullptr) return table;
  table.status = static_cast<cudaError_t>(table.cuInit(0));
  return table;
}

// "GPU-" and a UUID, in the usual grouping, of device `ordinal`; "" when the driver does not say.
std::string uuid_text(const Driver& table, int ordinal) {
  CUuuid uuid{};
  if (table.cuDeviceGetUuid == nullptr || table.cuDeviceGetUuid(&uuid, ordinal) != CUDA_SUCCESS) {
    return {};
  }
  std::string text = "GPU";
  for (size_t at = 0; at < sizeof uuid.bytes; ++at) {
    if (at == 0 || at == 4 || at == 6 || at == 8 || at == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(uuid.bytes[at]));
    text += digits;
  }
  return text;
}

// How many of `present` devices CUDA_VISIBLE_DEVICES leaves: its words count up to the first one
// that is not a device; one named twice leaves none.
int count_visible(const Driver& table, int present) {
  const char* const setting = std::getenv("CUDA_VISIBLE_DEVICES");
  if (setting == nullptr) return present;
  std::set<int> seen;
  std::stringstream words(setting);
  for (std::string word; std::getline(words, word, ',');) {
    int device = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), device);
    if (error != std::errc() || end != word.data() + word.size()) {
      device = -1;
      for (int ordinal = 0; word.starts_with("GPU-") && ordinal < present; ++ordinal) {
        if (uuid_text(table, ordinal).starts_with(word)) device = ordinal;
      }
    }
    if (device < 0 || device >= present) break;
    if (!seen.insert(device).second) return 0;
  }
  return static_cast<int>(seen.size());
}

}  // namespace

cudaError_t device_count(int* count) {
  const Driver& table = driver();
  *count = 0;
  if (table.status != cudaSuccess) return table.status;
  int present = 0;
  const CUresult result = table.cuDeviceGetCount(&present);
  if (result != CUDA_SUCCESS) return static_cast<cudaError_t>(result);
  static const int visible = count_visible(table, present);
  *count = visible;
  return visible == 0 ? cudaErrorNoDevice : cudaSuccess;
}

const Driver& driver() {
  // Leaked: streams and pinned memory may be given back by destructors that run after ours would.
  static const Driver* const table = new Driver(load());
  return *table;
}

cudaError_t keep(cudaError_t error) {
  if (error != cudaSuccess) thread_error = error;
  return error;
}

cudaError_t not_supported(const char* name) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const named = new std::set<std::string>;
  const std::lock_guard lock(*mutex);
  if (named->insert(name).second) {
    std::fprintf(stderr, "firn software device: %s is not supported\n", name);
  }
  return cudaErrorNotSupported;
}

cudaError_t enter_device(int device) {
  int count = 0;
  const cudaError_t error = device_count(&count);
  if (error != cudaSuccess) return error;
  const Driver& table = driver();
  CUresult result = CUDA_SUCCESS;
  if (device < 0 || device >= count || device >= devices_max) return cudaErrorInvalidDevice;
  CUcontext context = primary_contexts[device].load(std::memory_order_acquire);
  if (context == nullptr) {
    const std::lock_guard lock(primary_mutex);
    context = primary_contexts[device].load(std::memory_order_relaxed);
    if (context == nullptr) {
      CUdevice handle = 0;
      result = table.cuDeviceGet(&handle, device);
      if (result == CUDA_SUCCESS) result = table.cuDevicePrimaryCtxRetain(&context, handle);
      if (result != CUDA_SUCCESS) return static_cast<cudaError_t>(result);
      primary_contexts[device].store(context, std::memory_order_release);
    }
  }
  result = table.cuCtxSetCurrent(context);
  if (result == CUDA_SUCCESS) thread_device = device;
  return static_cast<cudaError_t>(result);
}

void forget_context(int device) {
  const std::lock_guard lock(primary_mutex);
  primary_contexts.at(device).store(nullptr, std::memory_order_release);
}

cudaError_t enter() {
  const Driver& table = driver();
  if (table.status != cudaSuccess) return table.status;
  CUcontext context = nullptr;
  const CUresult result = table.cuCtxGetCurrent(&context);
  if (result != CUDA_SUCCESS) return static_cast<cudaError_t>(result);
  return context != nullptr ? cudaSuccess : enter_device(thread_device);
}

cudaError_t current_device(int* device) {
  const Driver& table = driver();
  if (table.status != cudaSuccess) return table.status;
  CUcontext context = nullptr;
  CUresult result = table.cuCtxGetCurrent(&context);
  *device = thread_device;
  if (result == CUDA_SUCCESS && context != nullptr) {
    CUdevice handle = 0;
    result = table.cuCtxGetDevice(&handle);
    if (result == CUDA_SUCCESS) *device = handle;
  }
  return static_cast<cudaError_t>(result);
}

// For refused.cpp, which includes no CUDA header.
enum class Refused : int {};
Refused refuse(const char* name);
Refused refuse(const char* name) { return static_cast<Refused>(keep(not_supported(name))); }

}  // namespace firn::cudart

using namespace firn::cudart;

extern "C" {

cudaError_t cudaGetLastError(void) {
  const cudaError_t error = thread_error;
  thread_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError(void) { return thread_error; }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define FIRN_ERROR(name) \
  case name:             \
    return #name;
#include "backing/gpu/software/cudart/error_names.inc"
#undef FIRN_ERROR
  }
  return "unrecognized error code";
}
#pragma GCC diagnostic pop

const char* cudaGetErrorString(cudaError_t error) {
  const Driver& table = driver();
  const char* text = nullptr;
  if (error == cudaErrorInsufficientDriver) {
    return "CUDA driver version is insufficient for CUDA runtime version";
  }
  if (table.cuGetErrorString != nullptr &&
      table.cuGetErrorString(static_cast<CUresult>(error), &text) == CUDA_SUCCESS && text) {
    return text;
  }
  return cudaGetErrorName(error);
}

}  // extern "C"
