// The software GPU as a program would have it, beside Firn's own use of it: two kernels, one that
// writes words into a block and one that compares them. Owns the library's handle. Locks: none.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

#include "firn/cuda_abi.h"
#include "firn/software_gpu.h"

namespace firn::real_faults {

/// The scene could not be set up: no verdict on Firn.
[[noreturn]] inline void give_up(const char* what) {
  std::fprintf(stderr, "scene: cannot %s\n", what);
  std::_Exit(8);
}

inline std::atomic<uint64_t> wrong_words{0};

constexpr uint64_t words_apart = 64;  // one word of each 512 bytes, a disk's least unit

inline uint64_t word_at(uint64_t seed, uint64_t i) { return seed * 0x9E3779B97F4A7C15u + i; }

inline void fill_kernel(void** params, const unsigned*, const unsigned*) {
  auto* words = *static_cast<uint64_t**>(params[0]);
  const uint64_t count = *static_cast<uint64_t*>(params[1]);
  const uint64_t seed = *static_cast<uint64_t*>(params[2]);
  for (uint64_t i = 0; i < count; i += words_apart) words[i] = word_at(seed, i);
}

inline void compare_kernel(void** params, const unsigned*, const unsigned*) {
  auto* words = *static_cast<uint64_t**>(params[0]);
  const uint64_t count = *static_cast<uint64_t*>(params[1]);
  const uint64_t seed = *static_cast<uint64_t*>(params[2]);
  for (uint64_t i = 0; i < count; i += words_apart)
    if (words[i] != word_at(seed, i)) ++wrong_words;
}

class Gpu {
 public:
  explicit Gpu(const char* library) {
    handle_ = ::dlopen(library, RTLD_NOW);
    if (!handle_) give_up("open the software GPU's library");
    CUresult (*init)(unsigned);
    CUresult (*retain)(CUcontext*, CUdevice);
    CUresult (*set_current)(CUcontext);
    decltype(&firnGpuKernelCreate) kernel_create;
    get(init, "cuInit"), get(retain, "cuDevicePrimaryCtxRetain");
    get(set_current, "cuCtxSetCurrent"), get(synchronize_, "cuCtxSynchronize");
    get(launch_, "cuLaunchKernel"), get(kernel_create, "firnGpuKernelCreate");
    static const unsigned layout[][2] = {{0, 8}, {8, 8}, {16, 8}, {0, 0}};
    CUcontext context = nullptr;
    well_ = init(0) == CUDA_SUCCESS && retain(&context, 0) == CUDA_SUCCESS &&
            set_current(context) == CUDA_SUCCESS &&
            kernel_create("fill", fill_kernel, layout, &fill_) == 0 &&
            kernel_create("compare", compare_kernel, layout, &compare_) == 0;
  }
  /// False: not even the GPU could be had under the process's limits.
  bool well() const { return well_; }
  CUresult fill(void* block, size_t bytes, uint64_t seed) {
    return run(fill_, block, bytes, seed);
  }
  CUresult compare(void* block, size_t bytes, uint64_t seed) {
    return run(compare_, block, bytes, seed);
  }
  CUresult synchronize() { return synchronize_(); }

 private:
  template <class T>
  void get(T& into, const char* name) {
    into = reinterpret_cast<T>(::dlsym(handle_, name));
    if (!into) give_up(name);
  }
  CUresult run(void* kernel, void* block, size_t bytes, uint64_t seed) {
    uint64_t count = bytes / sizeof(uint64_t);
    void* params[] = {&block, &count, &seed};
    return launch_(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr);
  }

  void* handle_ = nullptr;
  bool well_ = false;
  void *fill_ = nullptr, *compare_ = nullptr;
  CUresult (*synchronize_)();
  CUresult (*launch_)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                      CUstream, void**, void**);
};

}  // namespace firn::real_faults
