// Where managed memory is wanted: taken of managed memory alone, and of nothing that is no place.
#include "fixture.h"

extern "C" {
CUresult cuMemAllocManaged(CUdeviceptr*, size_t, unsigned);
CUresult cuMemPrefetchAsync(CUdeviceptr, size_t, CUdevice, CUstream);
CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr, size_t, CUdevice, CUstream);
CUresult cuMemPrefetchAsync_v2(CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream);
CUresult cuMemPrefetchBatchAsync(CUdeviceptr*, size_t*, size_t, CUmemLocation*, size_t*, size_t,
                                 unsigned long long, CUstream);
CUresult cuMemPrefetchBatchAsync_ptsz(CUdeviceptr*, size_t*, size_t, CUmemLocation*, size_t*,
                                      size_t, unsigned long long, CUstream);
CUresult cuMemAdvise(CUdeviceptr, size_t, int, CUdevice);
CUresult cuMemAdvise_v2(CUdeviceptr, size_t, int, CUmemLocation);
}

namespace {

constexpr CUdevice cpu = -1;
constexpr CUmemLocation device{CU_MEM_LOCATION_TYPE_DEVICE, 0};

class Prefetch : public SoftwareGpu {
 protected:
  void SetUp() override {
    SoftwareGpu::SetUp();
    OK(cuMemAllocManaged(&managed, MiB, 1));
  }
  CUdeviceptr managed = 0;
};

TEST_F(Prefetch, managed_memory_is_wanted_somewhere_and_keeps_its_bytes) {
  std::memset(reinterpret_cast<void*>(managed), 42, MiB);
  OK(cuMemPrefetchAsync(managed, MiB, 0, nullptr));
  OK(cuMemPrefetchAsync(managed + 100, MiB - 100, cpu, stream()));
  OK(cuMemPrefetchAsync_ptsz(managed, 1, 0, nullptr));
  for (const CUmemLocationType type : {CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA,
                                       CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT})
    OK(cuMemPrefetchAsync_v2(managed, MiB, {type, 0}, 0, nullptr));
  for (int advice = 1; advice <= 6; ++advice) {
    OK(cuMemAdvise(managed, MiB, advice, 0));
    OK(cuMemAdvise(managed, MiB, advice, cpu));
    OK(cuMemAdvise_v2(managed, MiB, advice, device));
  }
  OK(cuCtxSynchronize());
  EXPECT_EQ(static_cast<const char*>(reinterpret_cast<void*>(managed))[MiB - 1], 42);
}

TEST_F(Prefetch, other_memory_is_refused) {
  CUdeviceptr linear = 0;
  void* host = nullptr;
  OK(cuMemAlloc_v2(&linear, MiB));
  OK(cuMemAllocHost_v2(&host, MiB));
  const auto pinned = reinterpret_cast<CUdeviceptr>(host);
  for (const CUdeviceptr address : {linear, mapped(), pinned, CUdeviceptr{0}, managed + MiB}) {
    EXPECT_EQ(cuMemPrefetchAsync(address, 1, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAdvise(address, 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
  }
  for (const size_t bytes : {size_t{0}, MiB + 1, SIZE_MAX}) {
    EXPECT_EQ(cuMemPrefetchAsync(managed, bytes, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAdvise(managed, bytes, 1, 0), CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_F(Prefetch, what_is_no_place_is_refused) {
  EXPECT_EQ(cuMemPrefetchAsync(managed, MiB, 1, nullptr), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuMemPrefetchAsync(managed, MiB, -2, nullptr), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuMemPrefetchAsync_v2(managed, MiB, {CU_MEM_LOCATION_TYPE_INVALID, 0}, 0, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPrefetchAsync_v2(managed, MiB, device, 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAdvise(managed, MiB, 3, 1), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuMemAdvise_v2(managed, MiB, 5, {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAdvise(managed, MiB, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAdvise(managed, MiB, 7, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemAdvise(managed, MiB, 1, 77));  // of this advice the place does not matter
}

TEST_F(Prefetch, a_batch_is_whole_or_refused) {
  CUdeviceptr other = 0;
  OK(cuMemAllocManaged(&other, MiB, 1));
  CUdeviceptr addresses[] = {managed, other, managed};
  size_t bytes[] = {MiB, MiB, 1}, indices[] = {0, 2}, one[] = {1};
  CUmemLocation places[] = {device, {CU_MEM_LOCATION_TYPE_HOST, 0}};
  const CUstream s = stream();
  OK(cuMemPrefetchBatchAsync(addresses, bytes, 3, places, indices, 2, 0, s));
  OK(cuMemPrefetchBatchAsync_ptsz(addresses, bytes, 3, places, indices, 2, 0, nullptr));
  const auto refused = [&](size_t count, size_t* at, size_t locations, unsigned long long flags,
                           CUstream on) {
    return cuMemPrefetchBatchAsync(addresses, bytes, count, places, at, locations, flags, on);
  };
  EXPECT_EQ(refused(3, indices, 2, 0, nullptr), CUDA_ERROR_INVALID_VALUE) << "the legacy stream";
  EXPECT_EQ(refused(3, indices, 2, 1, s), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(refused(3, indices, 0, 0, s), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(refused(1, indices, 2, 0, s), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(refused(2, indices, 2, 0, s), CUDA_ERROR_INVALID_VALUE) << "a place for none";
  EXPECT_EQ(refused(3, one, 1, 0, s), CUDA_ERROR_INVALID_VALUE) << "none for the first";
  EXPECT_EQ(cuMemPrefetchBatchAsync(nullptr, bytes, 3, places, indices, 2, 0, s),
            CUDA_ERROR_INVALID_VALUE);
  bytes[1] = MiB + 1;
  EXPECT_EQ(refused(3, indices, 2, 0, s), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Prefetch, no_graph_has_a_node_for_it) {
  const CUstream s = stream();
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(cuMemPrefetchAsync(managed, MiB, 0, s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(Prefetch, each_version_is_found) {
  for (const int version : {8000, 12020}) {
    void *prefetch = nullptr, *advise = nullptr;
    OK(cuGetProcAddress("cuMemPrefetchAsync", &prefetch, version, 0));
    OK(cuGetProcAddress("cuMemAdvise", &advise, version, 0));
  }
  void* batch = nullptr;
  OK(cuGetProcAddress("cuMemPrefetchBatchAsync", &batch, 13000, 0));
}

}  // namespace
