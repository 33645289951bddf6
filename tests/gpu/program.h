// What the programs share: a device with the kernels' module, blocks whose bytes add up to what a
// run needs, and the digest that every run must print alike. Any error ends the program, named.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <vector>

#include "tests/gpu/driver.h"
#include "tests/gpu/kernels.h"

inline void check(CUresult result, const char* what, int line) {
  if (result == CUDA_SUCCESS) return;
  const char* name = "?";
  (void)cuGetErrorName(result, &name);
  std::fprintf(stderr, "line %d: %s: %s\n", line, what, name);
  std::exit(3);
}
#define DO(call) check((call), #call, __LINE__)
#define EXPECT(condition)                                                              \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);     \
      std::exit(4);                                                                    \
    }                                                                                  \
  } while (0)

inline unsigned long long live_bytes = 0, live_bytes_peak = 0;

class Gpu {
 public:
  explicit Gpu(const char* kernels, int ordinal = 0) {
    DO(cuInit(0));
    DO(cuDeviceGet(&device, ordinal));
    DO(cuDevicePrimaryCtxRetain(&context, device));
    DO(cuCtxSetCurrent(context));
    DO(cuModuleLoad(&module, kernels));
  }
  CUfunction kernel(const char* name) const {
    CUfunction function = nullptr;
    DO(cuModuleGetFunction(&function, module, name));
    return function;
  }

  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
};

/// Device memory of `count` words.
struct Block {
  CUdeviceptr address = 0;
  size_t count = 0;
  size_t bytes() const { return count * sizeof(Word); }
};

inline void count_live(size_t bytes) {
  live_bytes += bytes;
  if (live_bytes > live_bytes_peak) live_bytes_peak = live_bytes;
}
inline Block make(size_t count) {
  Block block{0, count};
  DO(cuMemAlloc(&block.address, block.bytes()));
  count_live(block.bytes());
  return block;
}
inline void end(Block& block) {
  DO(cuMemFree(block.address));
  live_bytes -= block.bytes();
  block.address = 0;
}

/// `arguments` point to the parameters, as cuLaunchKernel takes them.
inline void launch(CUfunction kernel, std::initializer_list<const void*> arguments,
                   CUstream stream = nullptr) {
  std::vector<void*> pointers;
  for (const void* argument : arguments) pointers.push_back(const_cast<void*>(argument));
  DO(cuLaunchKernel(kernel, 64, 1, 1, 256, 1, 1, 0, stream, pointers.data(), nullptr));
}
inline void fill(const Gpu& gpu, const Block& block, Word seed, CUstream stream = nullptr) {
  const unsigned long long count = block.count;
  launch(gpu.kernel("fill"), {&block.address, &count, &seed}, stream);
}
inline void mix(CUfunction kernel, const Block& to, const Block& a, const Block& b, Word salt,
                CUstream stream = nullptr) {
  const unsigned long long count = to.count;
  launch(kernel, {&to.address, &a.address, &b.address, &count, &salt}, stream);
}

/// The parameters of one launch of `mix`, where the driver can find them, and its node.
struct Mix {
  CUdeviceptr to, a, b;
  unsigned long long number;
  Word salt = 0;
  void* pointers[5] = {&to, &a, &b, &number, &salt};
  CUDA_KERNEL_NODE_PARAMS node(CUfunction kernel) {
    CUDA_KERNEL_NODE_PARAMS is{};
    is.func = kernel;
    is.gridDimX = 64;
    is.blockDimX = 256;
    is.gridDimY = is.gridDimZ = is.blockDimY = is.blockDimZ = 1;
    is.kernelParams = pointers;
    return is;
  }
};

inline unsigned long long digest = 14695981039346656037ull;
inline void add_to_digest(const Block& block) {
  std::vector<Word> words(block.count);
  DO(cuMemcpyDtoH(words.data(), block.address, block.bytes()));
  for (Word word : words) digest = (digest ^ word) * 1099511628211ull;
}
inline int finish() {
  std::printf("digest %016llx bytes %llu\n", digest, live_bytes_peak);
  return 0;
}

inline const char* kernels_of(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s KERNELS\n", argv[0]);
    std::exit(2);
  }
  return argv[1];
}
