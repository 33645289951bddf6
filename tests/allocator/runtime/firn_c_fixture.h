// A process that uses the C API on the software GPU's wall clock, with real spill files, and the
// driver beside it.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "firn/cuda_abi.h"
#include "firn/firn.h"
#include "firn/software_gpu.h"

namespace firn::test_c {

/// The driver as a program would have it, beside Firn's own use of it.
struct Program {
  decltype(&firnGpuKernelCreate) kernel_create;
  decltype(&firnGpuCounts) counts;
  CUresult (*init)(unsigned);
  CUresult (*retain)(CUcontext*, CUdevice);
  CUresult (*set_current)(CUcontext);
  CUresult (*synchronize)();
  CUresult (*stream_create)(CUstream*, unsigned);
  CUresult (*stream_synchronize)(CUstream);
  CUresult (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     CUstream, void**, void**);
  void* handle;
  CUcontext context = nullptr;
  void* fill = nullptr;
  void* verify = nullptr;

  template <class T>
  void get(T& into, const char* name) {
    into = reinterpret_cast<T>(::dlsym(handle, name));
    if (!into) std::abort();
  }
  Program();
};

inline std::atomic<uint64_t> wrong{0};

inline void fill_kernel(void** params, const unsigned*, const unsigned*) {
  auto* words = *static_cast<uint64_t**>(params[0]);
  uint64_t count = *static_cast<uint64_t*>(params[1]), seed = *static_cast<uint64_t*>(params[2]);
  for (uint64_t i = 0; i < count; ++i) words[i] = seed * 0x9E3779B97F4A7C15ull + i;
}
inline void verify_kernel(void** params, const unsigned*, const unsigned*) {
  auto* words = *static_cast<uint64_t**>(params[0]);
  uint64_t count = *static_cast<uint64_t*>(params[1]), seed = *static_cast<uint64_t*>(params[2]);
  for (uint64_t i = 0; i < count; ++i)
    if (words[i] != seed * 0x9E3779B97F4A7C15ull + i) wrong.fetch_add(1);
}
inline const unsigned layout[][2] = {{0, 8}, {8, 8}, {16, 8}, {0, 0}};

inline Program::Program() {
  handle = ::dlopen(std::getenv("FIRN_TEST_GPU"), RTLD_NOW);
  if (!handle) std::abort();
  get(kernel_create, "firnGpuKernelCreate");
  get(counts, "firnGpuCounts");
  get(init, "cuInit");
  get(retain, "cuDevicePrimaryCtxRetain");
  get(set_current, "cuCtxSetCurrent");
  get(synchronize, "cuCtxSynchronize");
  get(stream_create, "cuStreamCreate");
  get(stream_synchronize, "cuStreamSynchronize");
  get(launch, "cuLaunchKernel");
  if (init(0) != CUDA_SUCCESS || retain(&context, 0) != CUDA_SUCCESS ||
      set_current(context) != CUDA_SUCCESS ||
      kernel_create("fill", fill_kernel, layout, &fill) != 0 ||
      kernel_create("verify", verify_kernel, layout, &verify) != 0)
    std::abort();
}

inline Program& program() {
  static Program* p = new Program;
  return *p;
}

inline void run_kernel(void* kernel, void* block, size_t bytes, uint64_t seed, CUstream stream) {
  uint64_t count = bytes / 8;
  void* params[] = {&block, &count, &seed};
  ASSERT_EQ(program().launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr), CUDA_SUCCESS);
}

inline const std::string& spill_dir() {
  static const std::string& dir = *new std::string([] {
    // Not where the tests run: one that is killed leaves nothing there.
    std::string pattern = (std::filesystem::temp_directory_path() / "firn-c-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) std::abort();
    std::atexit([] { std::filesystem::remove_all(spill_dir()); });
    return pattern;
  }());
  return dir;  // never destroyed: looked at in an exit handler
}

/// Further words for firn_init, of a process that a test here starts.
inline constexpr const char* more_words = "FIRN_TEST_C_MORE";

inline std::string oom_page() { return spill_dir() + "/oom.html"; }

class FirnC : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    EXPECT_EQ(firn_init("firn_budget:10XB"), FIRN_INVALID_ARGUMENT);
    EXPECT_NE(std::string(firn_error()).find("firn_budget"), std::string::npos);
    EXPECT_EQ(firn_init("firn_nonsense:1"), FIRN_INVALID_ARGUMENT);
    std::string missing = std::string("firn_dir:/no/such/place,firn_driver:") +
                          std::getenv("FIRN_TEST_GPU");
    EXPECT_EQ(firn_init(missing.c_str()), FIRN_INVALID_ARGUMENT) << firn_error();
    std::string conf =
        "firn_budget:96MiB,firn_host:48MiB,firn_watch:0,firn_test_allow_tmpfs:1,firn_dir:" +
        spill_dir() + ",firn_oom_page:" + oom_page() +
        ",firn_driver:" + std::getenv("FIRN_TEST_GPU");
    if (const char* more = std::getenv(more_words)) conf += std::string(",") + more;
    ASSERT_EQ(firn_init(conf.c_str()), FIRN_OK) << firn_error();
    (void)program();
  }
};

inline nlohmann::json stats() {
  std::string text(firn_stats(nullptr, 0) + 1, 0);
  while (firn_stats(text.data(), text.size()) >= text.size()) text.resize(2 * text.size());
  return nlohmann::json::parse(text.c_str());
}

}  // namespace firn::test_c
