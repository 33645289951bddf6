// The driver's table, and errors in words.
#include "backing/gpu/software/nccl/driver.h"

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <string>

namespace firn::nccl {
namespace {

constexpr int entries_version = 12090;

std::string& words() {
  static thread_local std::string said;
  return said;
}

Driver load() {
  Driver table;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return table;
  const auto find =
      reinterpret_cast<decltype(&::cuGetProcAddress)>(dlsym(library, "cuGetProcAddress_v2"));
  table.kernel_create =
      reinterpret_cast<decltype(table.kernel_create)>(dlsym(library, "firnGpuKernelCreate"));
  if (find == nullptr || table.kernel_create == nullptr) return table;
  table.complete = true;
  const auto resolve = [&](const char* name) {
    void* found = nullptr;
    CUdriverProcAddressQueryResult why{};
    if (find(name, &found, entries_version, CU_GET_PROC_ADDRESS_DEFAULT, &why) != CUDA_SUCCESS)
      found = nullptr;
    if (found == nullptr) table.complete = false;
    return found;
  };
#define FIRN_NCCL_RESOLVE(entry) \
  table.entry = reinterpret_cast<decltype(table.entry)>(resolve(#entry));
  FIRN_NCCL_DRIVER(FIRN_NCCL_RESOLVE)
#undef FIRN_NCCL_RESOLVE
  if (table.complete) table.complete = table.cuInit(0) == CUDA_SUCCESS;
  return table;
}

}  // namespace

const Driver& driver() {
  static const Driver table = load();
  if (!table.complete)
    (void)fail(ncclUnhandledCudaError,
               "the software NCCL needs the software GPU: libcuda.so.1 is another driver, or has "
               "no GPU");
  return table;
}

const char* last_error() { return words().c_str(); }

ncclResult_t fail(ncclResult_t result, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  words() = text;
  return result;
}

ncclResult_t checked(const char* entry, CUresult result) {
  if (result == CUDA_SUCCESS) return ncclSuccess;
  const char* name = nullptr;
  if (driver().cuGetErrorName(result, &name) != CUDA_SUCCESS) name = nullptr;
  return fail(ncclUnhandledCudaError, "%s: %s (%d)", entry, name != nullptr ? name : "error",
              static_cast<int>(result));
}

InContext::InContext(CUcontext context)
    : pushed_(driver().cuCtxPushCurrent(context) == CUDA_SUCCESS) {}

InContext::~InContext() {
  CUcontext popped = nullptr;
  if (pushed_) (void)driver().cuCtxPopCurrent(&popped);
}

}  // namespace firn::nccl
