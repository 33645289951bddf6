// A fresh software GPU for every test, and the shorthand that its tests share.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "entries.h"

#define OK(call) ASSERT_EQ((call), CUDA_SUCCESS)

inline constexpr size_t MiB = 1u << 20;
inline constexpr size_t granule = 2 * MiB;

class SoftwareGpu : public ::testing::Test {
 protected:
  /// `configure` changes the settings before cuInit.
  void start(FirnGpuConfig config = {}) {
    firnGpuReset();
    config.struct_bytes = sizeof config;
    if (!config.memory_bytes) config.memory_bytes = 64 * MiB;
    ASSERT_EQ(firnGpuConfigure(&config), 0);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
  }
  void SetUp() override { start(); }
  void TearDown() override { firnGpuReset(); }

  static CUmemAllocationProp prop(int device = 0) {
    CUmemAllocationProp p{};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return p;
  }
  static CUmemAccessDesc access(int device = 0) {
    return {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  }
  static CUmemGenericAllocationHandle frame(size_t bytes = granule, int device = 0) {
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp p = prop(device);
    EXPECT_EQ(cuMemCreate(&handle, bytes, &p, 0), CUDA_SUCCESS);
    return handle;
  }
  static CUdeviceptr reserve(size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAddressReserve(&address, bytes, 0, 0, 0), CUDA_SUCCESS);
    return address;
  }
  /// A reservation of one mapped, accessible frame.
  static CUdeviceptr mapped(size_t bytes = granule, int device = 0) {
    const CUdeviceptr address = reserve(bytes);
    const auto handle = frame(bytes, device);
    EXPECT_EQ(cuMemMap(address, bytes, 0, handle, 0), CUDA_SUCCESS);
    const CUmemAccessDesc a = access(device);
    EXPECT_EQ(cuMemSetAccess(address, bytes, &a, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    return address;
  }
  static CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream s = nullptr;
    EXPECT_EQ(cuStreamCreate(&s, flags), CUDA_SUCCESS);
    return s;
  }
  static CUevent event(unsigned flags = CU_EVENT_DEFAULT) {
    CUevent e = nullptr;
    EXPECT_EQ(cuEventCreate(&e, flags), CUDA_SUCCESS);
    return e;
  }
  static FirnGpuCounts counts(int device = 0) {
    FirnGpuCounts c{};
    EXPECT_EQ(firnGpuCounts(device, &c), 0);
    return c;
  }

  CUcontext context = nullptr;
};

/// The same on the virtual clock, with a modelled link.
class VirtualGpu : public SoftwareGpu {
 protected:
  void SetUp() override {
    FirnGpuConfig config{};
    config.virtual_clock = 1;
    config.link_bytes_s = 1e9;
    config.link_latency_ns = 1000;
    config.memory_bytes_s = 1e11;
    start(config);
  }
};
