// What the tests of beliefs share: a device, its driver through firn::Driver and, for what Firn
// itself does not call, by name; kernels; memory mapped as the engine maps it. Linked to no driver:
// FIRN_TEST_DRIVER names the library, FIRN_TEST_KERNELS the module (tests/gpu/kernels.cu).
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "firn/cuda_types.h"
#include "firn/driver.h"

#define OK(call) ASSERT_EQ((call), CUDA_SUCCESS)

/// X(name, parameters): entries beyond Firn's own table.
#define BELIEF_ENTRIES(X)                                                                          \
  X(cuModuleLoad, (CUmodule*, const char*))                                                        \
  X(cuModuleGetFunction, (CUfunction*, CUmodule, const char*))                                     \
  X(cuLibraryLoadFromFile, (CUlibrary*, const char*, int*, void**, unsigned, int*, void**,         \
                            unsigned))                                                             \
  X(cuLibraryGetKernel, (CUkernel*, CUlibrary, const char*))                                       \
  X(cuFuncGetParamInfo, (CUfunction, size_t, size_t*, size_t*))                                    \
  X(cuKernelGetParamInfo, (CUkernel, size_t, size_t*, size_t*))                                    \
  X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,       \
                     unsigned, CUstream, void**, void**))                                          \
  X(cuMemAlloc_v2, (CUdeviceptr*, size_t))                                                         \
  X(cuMemFree_v2, (CUdeviceptr))                                                                   \
  X(cuMemHostGetDevicePointer_v2, (CUdeviceptr*, void*, unsigned))                                 \
  X(cuPointerGetAttribute, (void*, int, CUdeviceptr))                                              \
  X(cuCtxGetCurrent, (CUcontext*))                                                                 \
  X(cuCtxSetCurrent, (CUcontext))                                                                  \
  X(cuStreamWaitValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned))                           \
  X(cuStreamWriteValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned))                          \
  X(cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))                                      \
  X(cuStreamEndCapture, (CUstream, CUgraph*))                                                      \
  X(cuGraphDestroy, (CUgraph))

namespace firn::beliefs {

using Word = unsigned;
constexpr size_t granule = size_t{2} << 20;
constexpr int died_of_it = 97;
constexpr CUresult no_binary_for_gpu = static_cast<CUresult>(209);
constexpr CUresult unsupported_ptx_version = static_cast<CUresult>(222);
constexpr unsigned no_timing = 2;  // CU_EVENT_DISABLE_TIMING

struct Entries {
#define BELIEF_MEMBER(name, parameters) CUresult(*name) parameters = nullptr;
  BELIEF_ENTRIES(BELIEF_MEMBER)
#undef BELIEF_MEMBER
};

/// As tests/gpu/kernels.h.
inline Word scramble(Word x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}

/// A page of registered host memory, known to the device by an address of its own.
struct HostWords {
  volatile Word* host = nullptr;
  CUdeviceptr device = 0;
};

class Belief : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* library = std::getenv("FIRN_TEST_DRIVER");
    auto opened = open_driver(library ? library : "");
    if (!opened) GTEST_SKIP() << describe(opened.error());
    driver = std::move(*opened);
    if (driver->init(0) != CUDA_SUCCESS) GTEST_SKIP() << "no GPU";
#define BELIEF_LOAD(name, parameters) \
  cu.name = reinterpret_cast<CUresult(*) parameters>(::dlsym(driver->handle, #name));
    BELIEF_ENTRIES(BELIEF_LOAD)
#undef BELIEF_LOAD
    OK(driver->device_get(&device, 0));
    OK(driver->device_primary_ctx_retain(&context, device));
    OK(driver->ctx_set_current(context));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(driver->stream_create(&stream, CU_STREAM_NON_BLOCKING));
    OK(driver->stream_create(&other, CU_STREAM_NON_BLOCKING));
    const char* kernels = std::getenv("FIRN_TEST_KERNELS");
    ASSERT_NE(kernels, nullptr) << "FIRN_TEST_KERNELS names the kernels' module";
    const CUresult loaded = cu.cuModuleLoad(&module, kernels);
    if (loaded == no_binary_for_gpu || loaded == unsupported_ptx_version)
      GTEST_SKIP() << "kernels that this driver or GPU does not take: " << loaded;
    OK(loaded);
    fill_kernel = kernel("fill");
    verify_kernel = kernel("verify");
    wait_kernel = kernel("wait_for");
    warm_up();
  }
  /// (The context stays: to make one takes a driver a while.)
  void TearDown() override {
    if (!stream) return;
    OK(driver->ctx_synchronize());
    OK(driver->stream_destroy(stream));
    OK(driver->stream_destroy(other));
  }
  /// A driver loads kernels at their first launch, and may wait for others then.
  void warm_up() const {
    const HostWords words = host_words();
    const CUdeviceptr block = mapped();
    fill(block, 1, stream);
    verify(block, 1, words.device, stream);
    *words.host = 1;
    wait_for(words, stream);
    EXPECT_EQ(driver->stream_synchronize(stream), CUDA_SUCCESS);
    drop(block);
  }

  CUdeviceptr reserve(size_t bytes) const {
    CUdeviceptr address = 0;
    EXPECT_EQ(driver->mem_address_reserve(&address, bytes, 0, 0, 0), CUDA_SUCCESS);
    return address;
  }
  CUmemGenericAllocationHandle frame(size_t bytes = granule) const {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(driver->mem_create(&handle, bytes, &prop, 0), CUDA_SUCCESS);
    return handle;
  }
  void map(CUdeviceptr address, CUmemGenericAllocationHandle handle, size_t bytes = granule) const {
    EXPECT_EQ(driver->mem_map(address, bytes, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver->mem_set_access(address, bytes, &access, 1), CUDA_SUCCESS);
  }
  CUdeviceptr mapped(size_t bytes = granule) const {
    const CUdeviceptr address = reserve(bytes);
    const CUmemGenericAllocationHandle handle = frame(bytes);
    map(address, handle, bytes);
    // The mapping keeps the memory.
    EXPECT_EQ(driver->mem_release(handle), CUDA_SUCCESS);
    return address;
  }
  void drop(CUdeviceptr address, size_t bytes = granule) const {
    EXPECT_EQ(driver->mem_unmap(address, bytes), CUDA_SUCCESS);
    EXPECT_EQ(driver->mem_address_free(address, bytes), CUDA_SUCCESS);
  }
  /// Never given back: the process is a test's.
  HostWords host_words(size_t bytes = 4096) const {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(at, MAP_FAILED);
    std::memset(at, 0, bytes);
    HostWords words{static_cast<Word*>(at), 0};
    EXPECT_EQ(driver->mem_host_register(at, bytes,
                                        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
              CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemHostGetDevicePointer_v2(&words.device, at, 0), CUDA_SUCCESS);
    return words;
  }

  CUfunction kernel(const char* name) const {
    CUfunction function = nullptr;
    EXPECT_EQ(cu.cuModuleGetFunction(&function, module, name), CUDA_SUCCESS) << name;
    return function;
  }
  CUresult launch(CUfunction function, std::initializer_list<const void*> arguments, CUstream on,
                  unsigned blocks = 64) const {
    std::vector<void*> pointers;
    for (const void* argument : arguments) pointers.push_back(const_cast<void*>(argument));
    return cu.cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, on, pointers.data(), nullptr);
  }
  void fill(CUdeviceptr to, Word seed, CUstream on, size_t bytes = granule) const {
    const unsigned long long count = bytes / sizeof(Word);
    EXPECT_EQ(launch(fill_kernel, {&to, &count, &seed}, on), CUDA_SUCCESS);
  }
  /// Adds to *wrong how many words are not those that fill() wrote.
  void verify(CUdeviceptr from, Word seed, CUdeviceptr wrong, CUstream on,
              size_t bytes = granule) const {
    const unsigned long long count = bytes / sizeof(Word);
    EXPECT_EQ(launch(verify_kernel, {&from, &count, &seed, &wrong}, on), CUDA_SUCCESS);
  }
  /// A kernel that runs until *flag is not 0, or a second and a half has gone by.
  void wait_for(const HostWords& flag, CUstream on) const {
    EXPECT_EQ(launch(wait_kernel, {&flag.device}, on, 1), CUDA_SUCCESS);
  }
  int attribute(int which) const {
    int value = -1;
    if (driver->device_get_attribute(&value, static_cast<CUdevice_attribute>(which), device) !=
        CUDA_SUCCESS)
      return -1;
    return value;
  }
  /// For a child that is expected to die of what it does; else its status says that it did not.
  [[noreturn]] void end_by(CUresult result) const {
    if (result == CUDA_SUCCESS) result = driver->ctx_synchronize();
    std::_Exit(result == CUDA_SUCCESS ? 0 : died_of_it);
  }

  std::unique_ptr<Driver> driver;
  Entries cu;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr, other = nullptr;
  CUmodule module = nullptr;
  CUfunction fill_kernel = nullptr, verify_kernel = nullptr, wait_kernel = nullptr;
  CUmemAllocationProp prop{};
  CUmemAccessDesc access{};
};

/// The driver answered with an error, or (the software GPU) ended the process.
inline bool refused(int status) {
  return WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == died_of_it);
}

}  // namespace firn::beliefs
