// What the real driver forbids ends the process, naming entry, address and rule; what it answers
// with an error is answered with that error.
#include <sys/mman.h>

#include <thread>

#include "fixture.h"

namespace {

using Rules = VirtualGpu;  // queued work stays queued until the clock is moved

TEST_F(Rules, unmap_under_queued_copy) {
  const CUdeviceptr address = mapped();
  const CUstream s = stream();
  void* host = nullptr;
  OK(cuMemAllocHost_v2(&host, granule));
  OK(cuMemcpyHtoDAsync_v2(address + 4096, host, 4096, s));
  EXPECT_DEATH(cuMemUnmap(address, granule), "cuMemUnmap: .*still queued .cuMemcpyHtoDAsync");
  OK(cuStreamSynchronize(s));
  OK(cuMemUnmap(address, granule));
}

TEST_F(Rules, unmap_under_queued_memset) {
  const CUdeviceptr address = mapped();
  OK(cuMemsetD8Async(address, 1, granule, stream()));
  EXPECT_DEATH(cuMemUnmap(address, granule), "still queued .cuMemsetD8Async");
}

TEST_F(Rules, unmap_under_queued_kernel_argument) {
  const CUdeviceptr address = mapped();
  void* kernel = nullptr;
  const unsigned layout[][2] = {{0, 4}, {8, 16}, {0, 0}};
  OK(static_cast<CUresult>(firnGpuKernelCreate(
      "argument", [](void**, const unsigned*, const unsigned*) {}, layout, &kernel)));
  int first = 1;
  CUdeviceptr inside_a_struct[2] = {7, address + 64};
  void* parameters[] = {&first, inside_a_struct};
  const CUstream s = stream();
  OK(cuLaunchKernel(static_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, s, parameters, nullptr));
  EXPECT_DEATH(cuMemUnmap(address, granule), "still queued .cuLaunchKernel");
  OK(cuStreamSynchronize(s));
  OK(cuMemUnmap(address, granule));
}

TEST_F(Rules, unmap_of_other_memory_is_allowed_meanwhile) {
  const CUdeviceptr busy = mapped(), idle = mapped();
  OK(cuMemsetD8Async(busy, 1, granule, stream()));
  OK(cuMemUnmap(idle, granule));
}

TEST_F(Rules, unmap_of_part) {
  const CUdeviceptr address = mapped(2 * granule);
  EXPECT_DEATH(cuMemUnmap(address, granule), "cannot be split");
  EXPECT_DEATH(cuMemUnmap(address + granule, granule), "cannot be split");
}

TEST_F(Rules, unmap_of_nothing) {
  const CUdeviceptr address = reserve(granule);
  EXPECT_DEATH(cuMemUnmap(address, granule), "is not mapped");
}

TEST_F(Rules, unmap_of_several_mappings_with_a_gap) {
  const CUdeviceptr address = reserve(3 * granule);
  for (size_t i : {0u, 2u}) OK(cuMemMap(address + i * granule, granule, 0, frame(), 0));
  EXPECT_DEATH(cuMemUnmap(address, 3 * granule), "is not mapped");
}

TEST_F(Rules, map_with_offset) {
  const CUdeviceptr address = reserve(granule);
  const auto handle = frame();
  EXPECT_DEATH(cuMemMap(address, granule, granule, handle, 0), "offset 0x200000: it must be 0");
}

TEST_F(Rules, map_over_a_mapping) {
  const CUdeviceptr address = mapped(2 * granule);
  const auto handle = frame();
  EXPECT_DEATH(cuMemMap(address, granule, 0, handle, 0), "overlaps the mapping");
  EXPECT_DEATH(cuMemMap(address + granule, granule, 0, handle, 0), "overlaps the mapping");
}

TEST_F(Rules, map_outside_a_reservation) {
  const CUdeviceptr address = reserve(granule);
  const auto handle = frame(2 * granule);
  EXPECT_DEATH(cuMemMap(address, 2 * granule, 0, handle, 0), "does not lie in one reservation");
}

TEST_F(Rules, misaligned) {
  const CUmemAllocationProp p = prop();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_DEATH(cuMemCreate(&handle, granule + 4096, &p, 0), "granularity");
  const CUdeviceptr address = reserve(2 * granule);
  handle = frame();
  EXPECT_DEATH(cuMemMap(address + 4096, granule, 0, handle, 0), "granularity");
}

TEST_F(Rules, access_of_unmapped) {
  const CUdeviceptr address = reserve(2 * granule);
  OK(cuMemMap(address, granule, 0, frame(), 0));
  const CUmemAccessDesc a = access();
  EXPECT_DEATH(cuMemSetAccess(address, 2 * granule, &a, 1), "is not mapped");
  OK(cuMemSetAccess(address, granule, &a, 1));
}

TEST_F(Rules, frame_released_twice) {
  const auto handle = frame();
  OK(cuMemRelease(handle));
  EXPECT_DEATH(cuMemRelease(handle), "used after destruction");
}

TEST_F(Rules, released_frame_lives_while_mapped) {
  const CUdeviceptr address = mapped();  // released after mapping
  EXPECT_EQ(counts().frames, 1u);
  std::memset(reinterpret_cast<void*>(address), 5, granule);
  CUmemGenericAllocationHandle again = 0;
  OK(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(address)));
  OK(cuMemUnmap(address, granule));
  EXPECT_EQ(counts().frame_bytes, granule);
  OK(cuMemRelease(again));
  EXPECT_EQ(counts().frame_bytes, 0u);
  EXPECT_EQ(counts().frames, 0u);
}

TEST_F(Rules, reservation_freed_while_mapped) {
  const CUdeviceptr address = mapped();
  EXPECT_DEATH(cuMemAddressFree(address, granule), "freed while .* is mapped");
  EXPECT_EQ(cuMemAddressFree(address, 2 * granule), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Rules, unmapped_and_inaccessible_memory_kills) {
  const CUdeviceptr address = reserve(granule);
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(address) = 1, "");
  OK(cuMemMap(address, granule, 0, frame(), 0));
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(address) = 1, "");  // no access yet
  const CUmemAccessDesc a = access();
  OK(cuMemSetAccess(address, granule, &a, 1));
  *reinterpret_cast<volatile char*>(address) = 1;
  OK(cuMemUnmap(address, granule));
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(address) = 1, "");
}

TEST_F(Rules, copies_of_unmapped_memory_are_refused) {
  const CUdeviceptr address = reserve(2 * granule);
  OK(cuMemMap(address, granule, 0, frame(), 0));
  char host[16] = {};
  EXPECT_EQ(cuMemcpyHtoDAsync_v2(address, host, 16, nullptr), CUDA_ERROR_INVALID_VALUE);
  const CUmemAccessDesc a = access();
  OK(cuMemSetAccess(address, granule, &a, 1));
  OK(cuMemcpyHtoDAsync_v2(address, host, 16, nullptr));
  EXPECT_EQ(cuMemsetD8Async(address + granule - 8, 0, 16, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Rules, destroyed_handles) {
  const CUstream s = stream();
  const CUevent e = event();
  OK(cuStreamDestroy_v2(s));
  OK(cuEventDestroy_v2(e));
  EXPECT_DEATH(cuStreamQuery(s), "stream 0x.* used after destruction");
  EXPECT_DEATH(cuEventRecord(e, nullptr), "event 0x.* used after destruction");
  CUcontext other = nullptr;
  OK(cuCtxCreate_v2(&other, 0, 0));
  OK(cuCtxDestroy_v2(other));
  EXPECT_DEATH(cuCtxPushCurrent_v2(other), "context 0x.* used after destruction");
}

TEST_F(Rules, never_a_handle) {
  int local = 0;
  EXPECT_EQ(cuEventQuery(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamQuery(reinterpret_cast<CUstream>(&local)), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuMemRelease(1234), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Rules, no_context) {
  OK(cuCtxSetCurrent(nullptr));
  CUstream s = nullptr;
  EXPECT_EQ(cuStreamCreate(&s, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(Rules, a_context_that_another_thread_destroyed_has_no_device_any_more) {
  CUcontext other = nullptr;
  CUdevice device = -1;
  OK(cuCtxCreate_v2(&other, 0, 0));
  OK(cuCtxGetDevice(&device));
  OK(cuCtxGetDevice(&device));  // from what the thread knows
  EXPECT_EQ(device, 0);
  std::thread([&] { OK(cuCtxDestroy_v2(other)); }).join();
  EXPECT_EQ(cuCtxGetDevice(&device), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  OK(cuCtxPopCurrent_v2(&other));
  OK(cuCtxGetDevice(&device));
  EXPECT_EQ(cuCtxGetDevice(nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Rules, host_memory_unregistered_under_a_copy) {
  const CUdeviceptr address = mapped();
  void* host = ::mmap(nullptr, granule, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(host, MAP_FAILED);
  OK(cuMemHostRegister_v2(host, granule, 0));
  EXPECT_EQ(cuMemHostRegister_v2(static_cast<char*>(host) + 4096, 4096, 0),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  const CUstream s = stream();
  OK(cuMemcpyDtoHAsync_v2(host, address, granule, s));
  EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);  // pinned: it did not wait
  EXPECT_DEATH(cuMemHostUnregister(host), "still queued");
  OK(cuStreamSynchronize(s));
  OK(cuMemHostUnregister(host));
  EXPECT_EQ(cuMemHostUnregister(host), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  ASSERT_EQ(::munmap(host, granule), 0);
  EXPECT_EQ(cuMemHostRegister_v2(host, granule, 0), CUDA_ERROR_INVALID_VALUE);  // not mapped
}

TEST_F(Rules, memory_freed_on_a_stream_that_others_still_use) {
  CUdeviceptr address = 0;
  const CUstream a = stream(), b = stream();
  OK(cuMemAllocAsync(&address, granule, a));
  OK(cuMemsetD8Async(address, 1, granule, b));
  EXPECT_DEATH(cuMemFreeAsync(address, a), "still queued");
}

TEST_F(Rules, driver_calls_in_host_functions_are_refused) {
  CUresult answer = CUDA_SUCCESS;
  auto call = [](void* data) { *static_cast<CUresult*>(data) = cuCtxSynchronize(); };
  OK(cuLaunchHostFunc(nullptr, call, &answer));
  OK(cuCtxSynchronize());
  EXPECT_EQ(answer, CUDA_ERROR_NOT_PERMITTED);
}

TEST_F(Rules, event_of_another_context) {
  CUcontext other = nullptr;
  const CUevent e = event();
  OK(cuCtxCreate_v2(&other, 0, 0));
  EXPECT_EQ(cuEventRecord(e, nullptr), CUDA_ERROR_INVALID_HANDLE);
  OK(cuCtxDestroy_v2(other));
  OK(cuCtxSetCurrent(context));
  OK(cuEventRecord(e, nullptr));
}

TEST_F(Rules, waiting_for_what_nobody_writes_is_a_deadlock) {
  CUdeviceptr flag = 0;
  OK(cuMemAlloc_v2(&flag, 4));
  OK(cuMemsetD32Async(flag, 0, 1, nullptr));
  OK(cuCtxSynchronize());
  const CUstream s = stream();
  OK(cuStreamWaitValue32_v2(s, flag, 1, 1));
  EXPECT_DEATH(cuStreamSynchronize(s), "deadlock");
  *reinterpret_cast<uint32_t*>(flag) = 1;
  OK(cuStreamSynchronize(s));
}

}  // namespace
