// Software kernels: modules and libraries, parameter layouts, ways to launch.
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "fixture.h"

namespace {

class Kernels : public SoftwareGpu {
 protected:
  static const char* path() { return std::getenv("FIRN_TEST_KERNELS"); }
  void SetUp() override {
    ASSERT_NE(path(), nullptr) << "FIRN_TEST_KERNELS is the module's path";
    start();
    OK(cuModuleLoad(&module, path()));
  }
  CUfunction function(const char* name) const {
    CUfunction f = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&f, module, name), CUDA_SUCCESS);
    return f;
  }
  CUdeviceptr floats(size_t count) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAlloc_v2(&address, count * sizeof(float)), CUDA_SUCCESS);
    for (size_t i = 0; i < count; ++i)
      reinterpret_cast<float*>(address)[i] = static_cast<float>(i);
    return address;
  }
  CUmodule module = nullptr;
};

TEST_F(Kernels, pointers_to_parameters) {
  CUdeviceptr values = floats(64);
  float factor = 3;
  void* parameters[] = {&values, &factor};
  OK(cuLaunchKernel(function("scale"), 2, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr));
  factor = 100;  // copied at the launch
  OK(cuCtxSynchronize());
  EXPECT_FLOAT_EQ(reinterpret_cast<float*>(values)[63], 189);
  EXPECT_EQ(counts().kernels, 1u);
}

TEST_F(Kernels, packed_buffer) {
  struct {
    CUdeviceptr values;
    float factor;
  } packed = {floats(8), 2};
  size_t bytes = 12;
  void* extra[] = {firn::software::launch_param_buffer_pointer, &packed,
                   firn::software::launch_param_buffer_bytes, &bytes,
                   firn::software::launch_param_end};
  OK(cuLaunchKernel(function("scale"), 1, 1, 1, 8, 1, 1, 0, nullptr, nullptr, extra));
  OK(cuCtxSynchronize());
  EXPECT_FLOAT_EQ(reinterpret_cast<float*>(packed.values)[7], 14);
  bytes = 11;
  EXPECT_EQ(cuLaunchKernel(function("scale"), 1, 1, 1, 8, 1, 1, 0, nullptr, nullptr, extra),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Kernels, launch_ex_and_pointers_in_structures) {
  CUdeviceptr a = floats(4), to = floats(1);
  struct {
    CUdeviceptr from;
    size_t count;
  } pairs[2] = {{a, 4}, {a + 8, 2}};
  void* parameters[] = {&to, pairs};
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream();
  OK(cuLaunchKernelEx(&config, function("sum"), parameters, nullptr));
  OK(cuStreamSynchronize(config.hStream));
  EXPECT_FLOAT_EQ(*reinterpret_cast<float*>(to), 11);
}

TEST_F(Kernels, layouts) {
  size_t offset = 9, bytes = 9;
  OK(cuFuncGetParamInfo(function("sum"), 0, &offset, &bytes));
  EXPECT_EQ(offset, 0u);
  EXPECT_EQ(bytes, 8u);
  OK(cuFuncGetParamInfo(function("sum"), 1, &offset, &bytes));
  EXPECT_EQ(offset, 8u);
  EXPECT_EQ(bytes, 32u);
  EXPECT_EQ(cuFuncGetParamInfo(function("sum"), 2, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncGetParamInfo(function("nothing"), 0, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
  const unsigned overlapping[][2] = {{0, 8}, {4, 8}, {0, 0}};
  void* kernel = nullptr;
  EXPECT_EQ(firnGpuKernelCreate("overlapping", [](void**, const unsigned*, const unsigned*) {},
                                overlapping, &kernel),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Kernels, what_is_missing) {
  CUfunction f = nullptr;
  CUmodule m = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&f, module, "absent"), CUDA_ERROR_NOT_FOUND);
  testing::internal::CaptureStderr();
  EXPECT_EQ(cuModuleGetFunction(&f, module, "untold"), CUDA_ERROR_NOT_FOUND);
  EXPECT_NE(testing::internal::GetCapturedStderr().find(
                "untold has no table untold_params of its parameters"),
            std::string::npos);
  EXPECT_EQ(cuModuleLoad(&m, "/nonexistent/kernels.so"), CUDA_ERROR_FILE_NOT_FOUND);
  EXPECT_EQ(cuModuleLoadData(&m, "// PTX is not taken\n.version 8.0\n"), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(cuLaunchKernel(function("nothing"), 0, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(function("nothing"), 1, 1, 1, 2048, 1, 1, 0, nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(function("scale"), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Kernels, a_gpus_code_is_refused_in_words_once) {
  EXPECT_EXIT(
      {
        CUmodule loaded = nullptr;
        for (int time = 0; time < 2; ++time)
          if (cuModuleLoadData(&loaded, ".version 8.0\n") != CUDA_ERROR_INVALID_IMAGE ||
              cuModuleLoad(&loaded, "/proc/self/status") != CUDA_ERROR_INVALID_IMAGE)
            std::exit(1);
        std::exit(0);
      },
      testing::ExitedWithCode(0),
      "^firn software GPU: cuModuleLoadData: this is not a shared object [^\n]*GPU\n$");
}

TEST_F(Kernels, unloaded_function) {
  const CUfunction f = function("nothing");
  OK(cuModuleUnload(module));
  EXPECT_DEATH(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
               "function 0x.* used after destruction");
  EXPECT_DEATH(cuModuleUnload(module), "module 0x.* used after destruction");
}

// Each image is a module of its own, with its own globals; and its code stays while it is queued.
TEST_F(Kernels, variables_are_device_memory_while_their_module_is_loaded) {
  CUdeviceptr address = 0;
  size_t bytes = 0;
  OK(cuModuleGetGlobal_v2(&address, &bytes, module, "variable"));
  EXPECT_EQ(bytes, 16u);
  OK(cuModuleGetGlobal_v2(nullptr, nullptr, module, "variable"));
  int values[4] = {};
  OK(cuMemcpyDtoH_v2(values, address, sizeof values));
  EXPECT_EQ(values[3], 4);
  values[3] = 9;
  OK(cuMemcpyHtoD_v2(address, values, sizeof values));
  EXPECT_EQ(cuMemcpyHtoD_v2(address + 8, values, sizeof values), CUDA_ERROR_INVALID_VALUE);
  unsigned type = 0;
  OK(cuPointerGetAttribute(&type, firn::software::pointer_memory_type, address));
  EXPECT_EQ(type, static_cast<unsigned>(firn::memory_device));
  EXPECT_EQ(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeAsync(address, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuModuleGetGlobal_v2(&address, &bytes, module, "scale"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuModuleGetGlobal_v2(&address, &bytes, module, "missing"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuModuleGetGlobal_v2(&address, &bytes, module, nullptr), CUDA_ERROR_INVALID_VALUE);
  CUlibrary library = nullptr;
  CUdeviceptr other = 0;
  OK(cuLibraryLoadFromFile(&library, path(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetGlobal(&other, &bytes, library, "variable"));
  EXPECT_EQ(bytes, 16u);
  OK(cuLibraryUnload(library));
  OK(cuModuleGetGlobal_v2(&address, &bytes, module, "variable"));
  OK(cuModuleUnload(module));
  EXPECT_NE(cuMemcpyDtoH_v2(values, address, sizeof values), CUDA_SUCCESS);
}

TEST_F(Kernels, images) {
  std::ifstream file(path(), std::ios::binary);
  std::vector<char> image{std::istreambuf_iterator<char>(file), {}};
  ASSERT_FALSE(image.empty());
  CUdeviceptr out = floats(2);
  for (int i = 0; i < 2; ++i) {
    CUmodule m = nullptr;
    CUfunction f = nullptr;
    OK(cuModuleLoadData(&m, image.data()));
    OK(cuModuleGetFunction(&f, m, "count_calls"));
    CUdeviceptr to = out + 4 * static_cast<unsigned>(i);
    void* parameters[] = {&to};
    const CUstream s = stream();
    OK(static_cast<CUresult>(firnGpuBusy(s, 2'000'000)));
    OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, parameters, nullptr));
    OK(cuModuleUnload(m));
    OK(cuStreamSynchronize(s));
    EXPECT_EQ(reinterpret_cast<int*>(out)[i], 1);
  }
}

TEST_F(Kernels, libraries) {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  OK(cuLibraryLoadFromFile(&library, path(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetKernel(&kernel, library, "scale"));
  size_t offset = 0, bytes = 0;
  OK(cuKernelGetParamInfo(kernel, 1, &offset, &bytes));
  EXPECT_EQ(offset, 8u);
  CUdeviceptr values = floats(4);
  float factor = 2;
  void* parameters[] = {&values, &factor};
  // A launch takes the kernel's handle where it expects a function's.
  OK(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 4, 1, 1, 0, nullptr, parameters,
                    nullptr));
  CUfunction f = nullptr;
  OK(cuKernelGetFunction(&f, kernel));
  OK(cuLaunchKernel(f, 1, 1, 1, 4, 1, 1, 0, nullptr, parameters, nullptr));
  OK(cuCtxSynchronize());
  EXPECT_FLOAT_EQ(reinterpret_cast<float*>(values)[3], 12);
  OK(cuLibraryUnload(library));
}

// A kernel runs on one of the GPU's threads, and what it does on spilled memory ends its context.
TEST_F(Kernels, kernel_on_unmapped_memory_ends_the_context) {
  CUdeviceptr address = reserve(granule);
  float factor = 1;
  void* parameters[] = {&address, &factor};
  ::testing::internal::CaptureStderr();
  OK(cuLaunchKernel(function("scale"), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  const std::string words = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(words.find("kernel scale used memory that it may not use"), std::string::npos);
  EXPECT_NE(words.find("it is reserved, and nothing is mapped there"), std::string::npos) << words;
}

}  // namespace
