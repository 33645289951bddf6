// Device memory that the driver takes for itself (FIRN_GPU_OWN): with each object, until its end.
#include <cstdlib>

#include "fixture.h"

namespace {

class OwnMemory : public SoftwareGpu {
 protected:
  void SetUp() override {
    ::setenv("FIRN_GPU_OWN", "module:8MiB,launch:2MiB,stream:4MiB,graph:6MiB", 1);
    start();
  }
  void TearDown() override {
    ::unsetenv("FIRN_GPU_OWN");
    SoftwareGpu::TearDown();
  }
  static size_t free_bytes() {
    size_t free = 0, total = 0;
    EXPECT_EQ(cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    return free;
  }
  /// Takes all that is free, but for so much.
  static CUdeviceptr leave(size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAlloc_v2(&address, free_bytes() - bytes), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes(), bytes);
    return address;
  }
  static CUresult load(CUmodule* module) {
    return cuModuleLoad(module, std::getenv("FIRN_TEST_KERNELS"));
  }
};

TEST_F(OwnMemory, a_module_and_its_first_launch) {
  const size_t before = free_bytes();
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  OK(load(&module));
  EXPECT_EQ(free_bytes(), before - 8 * MiB);
  OK(cuModuleGetFunction(&function, module, "nothing"));
  for (int i = 0; i < 2; ++i) {
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    EXPECT_EQ(free_bytes(), before - 10 * MiB);
  }
  OK(cuCtxSynchronize());
  OK(cuModuleUnload(module));
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(OwnMemory, what_does_not_fit_is_refused_and_takes_nothing) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUstream s = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  const CUdeviceptr all = leave(2 * MiB);
  EXPECT_EQ(load(&module), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuGraphCreate(&graph, 0));
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(free_bytes(), 2 * MiB);
  OK(cuMemFree_v2(all));
  OK(load(&module));
  OK(cuModuleGetFunction(&function, module, "nothing"));
  const CUdeviceptr rest = leave(0);
  EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
            CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuMemFree_v2(rest));
  OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  OK(cuCtxSynchronize());
}

TEST_F(OwnMemory, streams_and_graphs_give_it_back) {
  const size_t before = free_bytes();
  const CUstream s = stream();
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  EXPECT_EQ(free_bytes(), before - 10 * MiB);
  OK(cuGraphExecDestroy(exec));
  OK(cuStreamDestroy_v2(s));
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(OwnMemory, the_setting_is_read_with_care) {
  for (const char* words : {"module", "module:", "thing:2MiB", "module:2MiB,,", "stream:x"}) {
    firnGpuReset();
    ::setenv("FIRN_GPU_OWN", words, 1);
    EXPECT_EQ(cuInit(0), CUDA_ERROR_INVALID_VALUE) << words;
  }
}

}  // namespace
