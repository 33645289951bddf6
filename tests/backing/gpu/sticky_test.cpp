// A context that an error has ended: what ends it, what answers that error from then on, and what
// does not.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <thread>

#include "fixture.h"

namespace {

void store_to(void** params, const unsigned*, const unsigned*) {
  **static_cast<volatile char**>(params[0]) = 1;
}
void assert_fails(void**, const unsigned*, const unsigned*) { std::abort(); }
void traps(void**, const unsigned*, const unsigned*) { __builtin_trap(); }
void divides(void**, const unsigned*, const unsigned*) { (void)::raise(SIGFPE); }

class Sticky : public SoftwareGpu {
 protected:
  static CUresult launch(FirnGpuKernel kernel, CUdeviceptr address, CUstream s) {
    static const unsigned layout[][2] = {{0, 8}, {0, 0}};
    void* function = nullptr;
    if (firnGpuKernelCreate("the_kernel", kernel, layout, &function) != 0)
      return CUDA_ERROR_UNKNOWN;
    void* params[] = {&address};
    return cuLaunchKernel(static_cast<CUfunction>(function), 1, 1, 1, 1, 1, 1, 0, s, params,
                          nullptr);
  }
};

TEST_F(Sticky, a_kernel_that_reaches_unmapped_memory_ends_its_context) {
  const CUdeviceptr address = reserve(granule);
  const CUstream s = stream();
  ::testing::internal::CaptureStderr();
  OK(launch(store_to, address, s));
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
  const std::string words = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(words.find("kernel the_kernel used memory that it may not use"), std::string::npos)
      << words;
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS) << "it stays";
}

TEST_F(Sticky, what_a_kernel_dies_of) {
  const std::pair<FirnGpuKernel, CUresult> ways[] = {{assert_fails, CUDA_ERROR_ASSERT},
                                                     {traps, CUDA_ERROR_ILLEGAL_INSTRUCTION},
                                                     {divides, CUDA_ERROR_LAUNCH_FAILED}};
  for (const auto& [kernel, error] : ways) {
    start();
    ::testing::internal::CaptureStderr();
    OK(launch(kernel, 0, nullptr));
    EXPECT_EQ(cuCtxSynchronize(), error);
    (void)::testing::internal::GetCapturedStderr();
  }
}

TEST_F(Sticky, nearly_every_entry_answers_it) {
  const CUdeviceptr address = mapped();
  const CUstream s = stream();
  const CUevent e = event();
  ASSERT_EQ(firnGpuDie(CUDA_ERROR_LAUNCH_FAILED, 0), 0);
  const CUresult dead = CUDA_ERROR_LAUNCH_FAILED;
  CUdeviceptr linear = 0;
  CUevent made = nullptr;
  size_t free_bytes = 0, total = 0;
  char host = 0;
  EXPECT_EQ(cuMemAlloc_v2(&linear, granule), dead);
  EXPECT_EQ(cuMemGetInfo_v2(&free_bytes, &total), dead);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(&host, address, 1, s), dead);
  EXPECT_EQ(cuStreamQuery(s), dead);
  EXPECT_EQ(cuStreamSynchronize(s), dead);
  EXPECT_EQ(cuEventCreate(&made, 0), dead);
  EXPECT_EQ(cuEventRecord(e, s), dead);
  EXPECT_EQ(cuEventQuery(e), dead);
  EXPECT_EQ(cuEventSynchronize(e), dead);
  EXPECT_EQ(cuCtxSynchronize(), dead);
  EXPECT_EQ(launch(store_to, address, s), dead);
}

/// As an H100's driver answers: no kernel will ever use it.
TEST_F(Sticky, memory_is_mapped_and_given_back_still) {
  ASSERT_EQ(firnGpuDie(CUDA_ERROR_ILLEGAL_ADDRESS, 0), 0);
  const CUdeviceptr address = mapped();
  CUmemGenericAllocationHandle shared = 0;
  int file = -1;
  CUmemAllocationProp p = prop();
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  OK(cuMemCreate(&shared, granule, &p, 0));
  OK(cuMemExportToShareableHandle(&file, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ::close(file);
  OK(cuMemRelease(shared));
  OK(cuMemUnmap(address, granule));
  OK(cuMemAddressFree(address, granule));
}

TEST_F(Sticky, contexts_devices_and_words_are_answered_still) {
  ASSERT_EQ(firnGpuDie(CUDA_ERROR_ASSERT, 0), 0);
  CUcontext popped = nullptr;
  int count = 0, version = 0;
  const char* words = nullptr;
  OK(cuCtxPushCurrent_v2(context));
  OK(cuCtxPopCurrent_v2(&popped));
  OK(cuDeviceGetCount(&count));
  OK(cuDriverGetVersion(&version));
  OK(cuGetErrorString(CUDA_ERROR_ASSERT, &words));
  EXPECT_STREQ(words, "device-side assert triggered");
}

TEST_F(Sticky, queued_work_never_runs_and_waiters_are_answered) {
  const CUdeviceptr address = mapped();
  *reinterpret_cast<char*>(address) = 7;
  const CUstream s = stream();
  ASSERT_EQ(firnGpuBusy(s, 60'000'000'000), 0);
  OK(cuMemsetD8Async(address, 1, granule, s));
  CUresult answer = CUDA_SUCCESS;
  std::thread waiter([&] {
    (void)cuCtxSetCurrent(context);
    answer = cuStreamSynchronize(s);
  });
  ASSERT_EQ(firnGpuDie(CUDA_ERROR_ILLEGAL_ADDRESS, 0), 0);
  waiter.join();
  EXPECT_EQ(answer, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(*reinterpret_cast<char*>(address), 7);
}

TEST_F(Sticky, ends_after_so_many_calls) {
  const CUevent e = event();
  ASSERT_EQ(firnGpuDie(CUDA_ERROR_ASSERT, 3), 0);
  OK(cuEventQuery(e));
  OK(cuEventQuery(e));
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_ASSERT);
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_ASSERT);
}

TEST_F(Sticky, another_context_goes_on) {
  CUcontext other = nullptr;
  OK(cuCtxCreate_v2(&other, 0, 0));  // current from here
  const CUstream of_other = stream();
  OK(cuCtxSetCurrent(context));
  ::testing::internal::CaptureStderr();
  OK(launch(assert_fails, 0, nullptr));
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ASSERT);
  (void)::testing::internal::GetCapturedStderr();
  OK(cuCtxSetCurrent(other));
  OK(cuCtxSynchronize());
  OK(cuStreamQuery(of_other));
}

TEST_F(Sticky, a_failure_that_lasts) {
  const CUevent e = event();
  firnGpuFailFrom("cuEventQuery", 2, CUDA_ERROR_UNKNOWN);
  OK(cuEventQuery(e));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_UNKNOWN);
  firnGpuFailAt("cuEventQuery", 0, 0);
  OK(cuEventQuery(e));
}

TEST_F(Sticky, a_fault_of_the_program_is_its_own) {
  const CUdeviceptr address = reserve(granule);
  OK(launch(store_to, mapped(), nullptr));
  OK(cuCtxSynchronize());  // a kernel has run: faults are looked at
  EXPECT_EXIT(*reinterpret_cast<volatile char*>(address) = 1, ::testing::KilledBySignal(SIGSEGV),
              "");
}

}  // namespace
