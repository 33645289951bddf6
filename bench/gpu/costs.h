// What the programs that measure the driver's calls share: a GPU through firn::Driver (the
// machine's own or the software GPU; FIRN_TEST_DRIVER names the library), time, figures. Every
// failure ends the program with a line that says which call it was.
#pragma once

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "firn/cuda_types.h"
#include "firn/driver.h"

namespace firn::costs {

using Clock = std::chrono::steady_clock;
constexpr size_t MiB = size_t{1} << 20;

[[noreturn]] inline void give_up(const char* what, int result) {
  std::fprintf(stderr, "%s: %s: %d\n", program_invocation_short_name, what, result);
  std::exit(3);
}
#define DO(call)                                                   \
  do {                                                             \
    const int done = (call);                                       \
    if (done != CUDA_SUCCESS) firn::costs::give_up(#call, done);   \
  } while (0)

template <class Call>
double us(const Call& call) {
  const auto begin = Clock::now();
  call();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}
/// The value that this part of them does not exceed; 0 of none.
inline double quantile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  const auto at = std::min(values.size() - 1,
                           static_cast<size_t>(part * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at), values.end());
  return values[at];
}
inline double median(const std::vector<double>& values) { return quantile(values, .5); }
inline double rounded(double value) {
  return static_cast<double>(static_cast<long long>(value * 1000)) / 1e3;
}

inline std::byte* pages(size_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) give_up("mmap", -1);
  (void)::madvise(at, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(at);
}

struct Gpu {
  std::unique_ptr<Driver> driver;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmemAllocationProp prop{};
  CUmemAccessDesc access{};
  bool small = false;

  template <class Function>
  Function entry(const char* name) const {
    void* found = ::dlsym(driver->handle, name);
    if (!found) give_up(name, -1);
    return reinterpret_cast<Function>(found);
  }
  CUmodule module(const char* path) const {
    CUmodule module = nullptr;
    DO(entry<CUresult (*)(CUmodule*, const char*)>("cuModuleLoad")(&module, path));
    return module;
  }
  CUfunction kernel(CUmodule module, const char* name) const {
    CUfunction function = nullptr;
    DO(entry<CUresult (*)(CUfunction*, CUmodule, const char*)>("cuModuleGetFunction")(
        &function, module, name));
    return function;
  }
};

/// With the first device's primary context current.
inline Gpu open() {
  Gpu gpu;
  const char* library = std::getenv("FIRN_TEST_DRIVER");
  auto opened = open_driver(library ? library : "");
  if (!opened) {
    std::fprintf(stderr, "%s: %s\n", program_invocation_short_name,
                 describe(opened.error()).c_str());
    std::exit(2);
  }
  gpu.driver = std::move(*opened);
  DO(gpu.driver->init(0));
  DO(gpu.driver->device_get(&gpu.device, 0));
  DO(gpu.driver->device_primary_ctx_retain(&gpu.context, gpu.device));
  DO(gpu.driver->ctx_set_current(gpu.context));
  gpu.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  gpu.prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device};
  gpu.access = {{CU_MEM_LOCATION_TYPE_DEVICE, gpu.device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return gpu;
}

}  // namespace firn::costs
