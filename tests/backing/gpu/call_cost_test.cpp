// The time that calls take on the wall clock: for each handle, one call at a time, and nobody else
// is held up.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "fixture.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class CallCost : public SoftwareGpu {
 protected:
  void SetUp() override {}
  void begin(const char* words, double link_bytes_s = 0) {
    ::setenv("FIRN_GPU_CALL_COST", words, 1);
    FirnGpuConfig config{};
    config.link_bytes_s = link_bytes_s;
    start(config);
  }
  void TearDown() override {
    ::unsetenv("FIRN_GPU_CALL_COST");
    SoftwareGpu::TearDown();
  }
  /// `count` frames of a granule side by side.
  CUdeviceptr side_by_side(unsigned count) {
    const CUdeviceptr base = reserve(count * granule);
    for (unsigned i = 0; i < count; ++i) {
      const auto handle = frame();
      EXPECT_EQ(cuMemMap(base + i * granule, granule, 0, handle, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    }
    return base;
  }
};

TEST_F(CallCost, is_by_handles) {
  begin("100");
  const CUdeviceptr base = side_by_side(4);
  const CUmemAccessDesc open = access();
  auto at = Clock::now();
  OK(cuMemSetAccess(base, 4 * granule, &open, 1));
  EXPECT_GE(seconds(at), 4 * 36e-6 * 100);
  at = Clock::now();
  OK(cuMemUnmap(base, 4 * granule));
  EXPECT_GE(seconds(at), 4 * 26e-6 * 100);
}

TEST_F(CallCost, of_host_memory_is_by_bytes) {
  begin("10");
  std::vector<char> memory(4 * MiB);
  const auto at = Clock::now();
  OK(cuMemHostRegister_v2(memory.data(), memory.size(), 0));
  EXPECT_GE(seconds(at), 4 * 330e-6 * 10);
  OK(cuMemHostUnregister(memory.data()));
}

TEST_F(CallCost, is_paid_one_call_at_a_time) {
  begin("1000");
  const CUdeviceptr base = side_by_side(2);
  const auto at = Clock::now();
  std::thread other([&] {
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuMemUnmap(base + granule, granule), CUDA_SUCCESS);
  });
  OK(cuMemUnmap(base, granule));
  other.join();
  EXPECT_GE(seconds(at), 2 * 26e-6 * 1000);
}

TEST_F(CallCost, holds_up_no_other_calls) {
  begin("20000");  // half a second
  const CUdeviceptr base = side_by_side(1);
  std::atomic<bool> begun{false}, over{false};
  std::thread other([&] {
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    begun = true;
    EXPECT_EQ(cuMemUnmap(base, granule), CUDA_SUCCESS);
    over = true;
  });
  while (!begun) std::this_thread::yield();
  size_t free_bytes = 0, total = 0;
  for (int i = 0; i < 100; ++i) OK(cuMemGetInfo_v2(&free_bytes, &total));
  EXPECT_FALSE(over);
  other.join();
}

/// As on an H100: for a gap between copies to the host, or so long for each handle.
TEST_F(CallCost, access_waits_for_a_gap_between_copies_to_the_host) {
  for (const bool patient : {true, false}) {
    begin(patient ? "10+1e6" : "1+100", 16 * MiB);
    std::vector<char> host(4 * MiB);  // a quarter of a second
    OK(cuMemHostRegister_v2(host.data(), host.size(), 0));
    const CUdeviceptr copied = mapped(2 * granule), base = side_by_side(1), flag = mapped();
    const CUstream s = stream();
    const CUevent before = event(), first = event(), second = event();
    const CUmemAccessDesc open = access();
    OK(cuMemsetD8_v2(flag, 0, 4));
    OK(cuEventRecord(before, s));
    OK(cuMemcpyDtoHAsync_v2(host.data(), copied, host.size(), s));
    OK(cuEventRecord(first, s));
    OK(cuStreamWaitValue32_v2(s, flag, 1, 0));  // at least 1
    OK(cuMemcpyDtoHAsync_v2(host.data(), copied, host.size(), s));
    OK(cuEventRecord(second, s));
    OK(cuEventSynchronize(before));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the copy has begun
    OK(cuMemSetAccess(base, granule, &open, 1));
    if (patient) {  // the copy is over, and its event about to be
      const auto at = Clock::now();
      OK(cuEventSynchronize(first));
      EXPECT_LT(seconds(at), .1);
    } else {
      EXPECT_EQ(cuEventQuery(first), CUDA_ERROR_NOT_READY);
    }
    EXPECT_EQ(cuEventQuery(second), CUDA_ERROR_NOT_READY) << "a copy that waits is no copy";
    OK(cuMemsetD8Async(flag, 1, 4, stream()));
    OK(cuStreamSynchronize(s));
    OK(cuMemHostUnregister(host.data()));
    TearDown();
  }
}

/// Neither do copies to the device, nor does unmapping.
TEST_F(CallCost, nothing_else_waits_for_copies) {
  begin("10+1e6", 16 * MiB);
  std::vector<char> host(4 * MiB);
  OK(cuMemHostRegister_v2(host.data(), host.size(), 0));
  const CUdeviceptr copied = mapped(2 * granule), base = side_by_side(1);
  const CUstream s = stream();
  const CUmemAccessDesc open = access();
  OK(cuMemcpyHtoDAsync_v2(copied, host.data(), host.size(), s));
  OK(cuMemSetAccess(base, granule, &open, 1));
  EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
  OK(cuStreamSynchronize(s));
  OK(cuMemcpyDtoHAsync_v2(host.data(), copied, host.size(), s));
  OK(cuMemUnmap(base, granule));
  EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
  OK(cuStreamSynchronize(s));
  OK(cuMemHostUnregister(host.data()));
}

TEST_F(CallCost, words_that_are_no_scale_are_refused) {
  for (const char* words : {"much", "1+", "1+x", "-1", "4 5"}) {
    ::setenv("FIRN_GPU_CALL_COST", words, 1);
    firnGpuReset();
    EXPECT_EQ(cuInit(0), CUDA_ERROR_INVALID_VALUE) << words;
  }
  begin("2+150");
}

}  // namespace
