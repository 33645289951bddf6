// Streams and events: order within and between streams, the legacy stream, times, copies; on the
// wall clock with worker threads, and on the virtual clock without.
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "fixture.h"

namespace {

// Both clocks must keep the same order.
class Order : public SoftwareGpu, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    FirnGpuConfig config{};
    config.virtual_clock = GetParam();
    start(config);
    OK(cuMemAlloc_v2(&gate_, sizeof(uint32_t)));
    OK(cuMemsetD32Async(gate_, 0, 1, nullptr));
    OK(cuCtxSynchronize());
  }
  /// Work on `s` does not go on before open().
  void hold(CUstream s) { OK(cuStreamWaitValue32_v2(s, gate_, 1, 1)); }
  void open() { __atomic_store_n(reinterpret_cast<uint32_t*>(gate_), 1u, __ATOMIC_RELEASE); }
  /// Work on `s` that takes `ns`, then appends `mark` to the log.
  void append(CUstream s, int mark, uint64_t ns = 0) {
    if (ns) {
      OK(static_cast<CUresult>(firnGpuBusy(s, ns)));
    }
    marks_[static_cast<size_t>(mark)] = {this, mark};
    OK(cuLaunchHostFunc(s, [](void* data) {
      auto [self, value] = *static_cast<std::pair<Order*, int>*>(data);
      self->log[self->next.fetch_add(1)] = value;
    }, &marks_[static_cast<size_t>(mark)]));
  }
  std::vector<int> order() { return {log, log + next}; }

  int log[64] = {};
  std::atomic<int> next{0};

 private:
  CUdeviceptr gate_ = 0;
  std::pair<Order*, int> marks_[64];
};

constexpr uint64_t ms = 1'000'000;

TEST_P(Order, within_a_stream) {
  const CUstream s = stream();
  for (int i = 0; i < 20; ++i) append(s, i, i == 3 ? 2 * ms : 0);
  OK(cuStreamSynchronize(s));
  std::vector<int> expected;
  for (int i = 0; i < 20; ++i) expected.push_back(i);
  EXPECT_EQ(order(), expected);
}

TEST_P(Order, event_between_streams) {
  const CUstream a = stream(), b = stream();
  const CUevent e = event();
  hold(a);
  append(a, 1);
  OK(cuEventRecord(e, a));
  OK(cuStreamWaitEvent(b, e, 0));
  append(b, 2);
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
  open();
  OK(cuStreamSynchronize(b));
  EXPECT_EQ(cuEventQuery(e), CUDA_SUCCESS);
  EXPECT_EQ(order(), (std::vector{1, 2}));
}

TEST_P(Order, wait_captures_the_record_before_it) {
  const CUstream a = stream(), b = stream();
  const CUevent e = event();
  OK(cuEventRecord(e, a));
  hold(a);
  append(a, 1);
  OK(cuStreamWaitEvent(b, e, 0));  // on the first record, which is complete
  append(b, 2);
  OK(cuEventRecord(e, a));
  OK(cuStreamSynchronize(b));
  EXPECT_EQ(order(), (std::vector{2}));
  open();
  OK(cuCtxSynchronize());
  EXPECT_EQ(order(), (std::vector{2, 1}));
}

TEST_P(Order, independent_streams_overlap) {
  const CUstream a = stream(), b = stream();
  hold(a);
  append(a, 1);
  append(b, 2);
  OK(cuStreamSynchronize(b));
  open();
  OK(cuCtxSynchronize());
  EXPECT_EQ(order(), (std::vector{2, 1}));
}

TEST_P(Order, legacy_stream_orders_blocking_streams) {
  const CUstream blocking = stream(CU_STREAM_DEFAULT), other = stream(CU_STREAM_NON_BLOCKING);
  hold(blocking);
  append(blocking, 1, ms);
  append(nullptr, 2, ms);  // after what the blocking stream holds
  append(blocking, 3);     // after the legacy stream
  append(other, 4);        // not ordered with either
  OK(cuStreamSynchronize(other));
  EXPECT_EQ(order(), (std::vector{4}));
  open();
  OK(cuCtxSynchronize());
  EXPECT_EQ(order(), (std::vector{4, 1, 2, 3}));
}

TEST_P(Order, per_thread_stream_is_a_blocking_stream_of_its_own) {
  hold(CU_STREAM_PER_THREAD);
  append(CU_STREAM_PER_THREAD, 1, ms);
  append(CU_STREAM_LEGACY, 2);
  EXPECT_EQ(cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
  std::thread([&] {
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  }).join();
  open();
  OK(cuStreamSynchronize(CU_STREAM_LEGACY));
  EXPECT_EQ(order(), (std::vector{1, 2}));
}

TEST_P(Order, elapsed_time_is_at_least_the_work) {
  const CUstream s = stream();
  const CUevent a = event(), b = event();
  float elapsed = -1;
  EXPECT_EQ(cuEventElapsedTime(&elapsed, a, b), CUDA_ERROR_INVALID_HANDLE);  // never recorded
  OK(cuEventRecord(a, s));
  hold(s);
  OK(static_cast<CUresult>(firnGpuBusy(s, 5 * ms)));
  OK(cuEventRecord(b, s));
  EXPECT_EQ(cuEventElapsedTime(&elapsed, a, b), CUDA_ERROR_NOT_READY);
  open();
  OK(cuEventSynchronize(b));
  OK(cuEventElapsedTime(&elapsed, a, b));
  EXPECT_GE(elapsed, 5.0f);
  if (GetParam()) {
    EXPECT_FLOAT_EQ(elapsed, 5.0f);
  }
  const CUevent untimed = event(CU_EVENT_DISABLE_TIMING);
  OK(cuEventRecord(untimed, s));
  OK(cuEventSynchronize(untimed));
  EXPECT_EQ(cuEventElapsedTime(&elapsed, a, untimed), CUDA_ERROR_INVALID_HANDLE);
}

TEST_P(Order, values) {
  CUdeviceptr flag = 0;
  OK(cuMemAlloc_v2(&flag, 4));
  OK(cuMemsetD32Async(flag, 0, 1, nullptr));
  OK(cuCtxSynchronize());
  const CUstream a = stream(), b = stream();
  OK(cuStreamWaitValue32_v2(a, flag, 3, 0));  // at least 3
  append(a, 2);
  append(b, 1, 10 * ms);
  OK(cuStreamWriteValue32_v2(b, flag, 4, 0));
  OK(cuStreamSynchronize(a));
  EXPECT_EQ(order(), (std::vector{1, 2}));
}

TEST_P(Order, destroyed_stream_finishes_its_work) {
  const CUstream s = stream(CU_STREAM_DEFAULT);
  hold(s);
  append(s, 1, ms);
  OK(cuStreamDestroy_v2(s));
  append(nullptr, 2);  // the legacy stream still waits for it
  open();
  OK(cuCtxSynchronize());
  EXPECT_EQ(order(), (std::vector{1, 2}));
  EXPECT_EQ(counts().streams, 1u);  // the legacy stream
}

TEST_P(Order, pageable_source_may_change_after_the_call) {
  CUdeviceptr address = 0;
  OK(cuMemAlloc_v2(&address, 3 * MiB));
  const CUstream s = stream();
  for (size_t bytes : {size_t{100}, 3 * MiB}) {
    std::vector<unsigned char> host(bytes, 1), back(bytes);
    OK(static_cast<CUresult>(firnGpuBusy(s, ms)));
    OK(cuMemcpyHtoDAsync_v2(address, host.data(), bytes, s));
    std::fill(host.begin(), host.end(), 2);
    OK(cuMemcpyDtoHAsync_v2(back.data(), address, bytes, s));  // complete on return
    EXPECT_EQ(back, std::vector<unsigned char>(bytes, 1));
  }
}

TEST_P(Order, stream_ordered_allocation_waits_for_frees_under_way) {
  const CUstream s = stream();
  CUdeviceptr first = 0, second = 0;
  OK(cuMemAllocAsync(&first, 48 * MiB, s));
  hold(s);
  OK(cuMemFreeAsync(first, s));
  EXPECT_EQ(counts().malloc_bytes, 48 * MiB + granule);  // and the gate's
  open();
  OK(cuMemAllocAsync(&second, 48 * MiB, s));
  OK(cuMemFreeAsync(second, s));
  OK(cuStreamSynchronize(s));
  EXPECT_EQ(counts().malloc_bytes, granule);
}

TEST_P(Order, free_waits_for_the_memorys_work) {
  const CUstream s = stream();
  CUdeviceptr address = 0;
  OK(cuMemAlloc_v2(&address, MiB));
  OK(static_cast<CUresult>(firnGpuBusy(s, ms)));
  OK(cuMemsetD8Async(address, 1, MiB, s));
  OK(cuMemFree_v2(address));
  EXPECT_EQ(cuStreamQuery(s), CUDA_SUCCESS);
}

INSTANTIATE_TEST_SUITE_P(Clock, Order, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "virtual_time" : "wall"; });

using Wall = SoftwareGpu;

TEST_F(Wall, copies_take_their_modelled_time) {
  FirnGpuConfig config{};
  config.link_bytes_s = 1e9;
  start(config);
  CUdeviceptr address = 0;
  OK(cuMemAlloc_v2(&address, 20 * MiB));
  void* host = nullptr;
  OK(cuMemAllocHost_v2(&host, 20 * MiB));
  const CUstream a = stream(), b = stream();
  const CUevent begin = event(), end = event();
  OK(cuEventRecord(begin, a));
  OK(cuMemcpyHtoDAsync_v2(address, host, 10 * MiB, a));
  OK(cuMemcpyHtoDAsync_v2(address + 10 * MiB, host, 10 * MiB, b));  // shares the link
  const CUevent joint = event();
  OK(cuEventRecord(joint, b));
  OK(cuStreamWaitEvent(a, joint, 0));
  OK(cuEventRecord(end, a));
  OK(cuEventSynchronize(end));
  float elapsed = 0;
  OK(cuEventElapsedTime(&elapsed, begin, end));
  EXPECT_GE(elapsed, 20 * MiB / 1e6);
}

// No thread before the first work, and no more of them than streams were busy at once.
TEST_F(Wall, one_worker_per_busy_stream) {
  EXPECT_EXIT(
      {
        auto threads = [] {
          return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
        };
        const auto before = threads();
        const CUstream a = stream();
        const CUstream b = stream();
        const CUevent e = event();
        if (cuEventRecord(e, a) != CUDA_SUCCESS || threads() != before) ::_exit(1);
        for (int i = 0; i < 500; ++i) {
          if (cuLaunchHostFunc(a, [](void*) {}, nullptr) != CUDA_SUCCESS) ::_exit(2);
          if (i % 10 == 0 && cuStreamSynchronize(a) != CUDA_SUCCESS) ::_exit(3);
        }
        if (cuStreamSynchronize(a) != CUDA_SUCCESS || threads() != before + 1) ::_exit(4);
        if (firnGpuBusy(a, 3'000'000) || firnGpuBusy(b, 3'000'000)) ::_exit(5);
        if (cuCtxSynchronize() != CUDA_SUCCESS || threads() != before + 2) ::_exit(6);
        ::_exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

// Many threads enqueue, wait and query at once.
TEST_F(Wall, threads) {
  constexpr int threads = 4, rounds = 200;
  std::vector<std::thread> all;
  std::atomic<int> wrong{0};
  for (int t = 0; t < threads; ++t)
    all.emplace_back([&, t] {
      if (cuCtxSetCurrent(context) != CUDA_SUCCESS) ++wrong;
      CUstream s = nullptr;
      CUevent e = nullptr;
      CUdeviceptr address = 0;
      wrong += cuStreamCreate(&s, t % 2) != CUDA_SUCCESS;
      wrong += cuEventCreate(&e, 0) != CUDA_SUCCESS;
      wrong += cuMemAlloc_v2(&address, 4096) != CUDA_SUCCESS;
      for (int i = 0; i < rounds; ++i) {
        unsigned char back[64] = {};
        wrong += cuMemsetD8Async(address, static_cast<unsigned char>(i), 4096, s) != CUDA_SUCCESS;
        wrong += cuEventRecord(e, s) != CUDA_SUCCESS;
        wrong += cuMemcpyDtoHAsync_v2(back, address + 1000, 64, s) != CUDA_SUCCESS;
        wrong += back[5] != static_cast<unsigned char>(i);
        wrong += cuEventSynchronize(e) != CUDA_SUCCESS;
      }
      wrong += cuStreamDestroy_v2(s) != CUDA_SUCCESS;
    });
  for (auto& thread : all) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(counts().copies, uint64_t{threads} * rounds);
}

}  // namespace
