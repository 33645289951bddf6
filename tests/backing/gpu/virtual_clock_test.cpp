// The virtual clock: modelled times to the nanosecond, determinism, waiting.
#include <algorithm>
#include <random>

#include "firn/virtual_clock.h"
#include "fixture.h"

namespace {

using Time = VirtualGpu;

TEST_F(Time, copies_take_latency_and_bandwidth_and_share_the_link) {
  void* host = nullptr;
  OK(cuMemAllocHost_v2(&host, 4 * MiB));
  const CUdeviceptr address = mapped(2 * granule);
  const CUstream a = stream(), b = stream(), c = stream();
  EXPECT_EQ(firnGpuNextEvent(), UINT64_MAX);
  const uint64_t begin = firnGpuNow();
  OK(cuMemcpyHtoDAsync_v2(address, host, 1000000, a));
  EXPECT_EQ(firnGpuNextEvent(), begin + 1'001'000);
  OK(cuMemcpyHtoDAsync_v2(address + granule, host, 1000000, b));  // after it, on the same link
  // The other way.
  OK(cuMemcpyDtoHAsync_v2(static_cast<char*>(host) + 2 * MiB, address, 500000, c));
  OK(cuStreamSynchronize(c));
  EXPECT_EQ(firnGpuNow(), begin + 501'000);
  OK(cuStreamSynchronize(b));
  EXPECT_EQ(firnGpuNow(), begin + 2'001'000);
  OK(cuMemsetD8Async(address, 1, granule, a));
  OK(cuStreamSynchronize(a));
  EXPECT_EQ(firnGpuNow(), begin + 2'001'000 + 20'971);
}

TEST_F(Time, nothing_happens_until_the_clock_moves) {
  const CUdeviceptr address = mapped();
  const CUstream s = stream();
  OK(cuMemsetD8Async(address, 1, granule, s));
  const CUevent e = event();
  OK(cuEventRecord(e, s));
  EXPECT_EQ(*reinterpret_cast<char*>(address), 0);
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_NOT_READY);
  firnGpuAdvanceTo(firnGpuNextEvent() - 1);
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_NOT_READY);
  firnGpuAdvanceTo(firnGpuNextEvent());
  EXPECT_EQ(cuEventQuery(e), CUDA_SUCCESS);
  EXPECT_EQ(*reinterpret_cast<char*>(address), 1);
}

TEST_F(Time, calls_take_their_time) {
  FirnGpuConfig config{};
  config.virtual_clock = 1;
  config.call_ns_create = 100;
  config.call_ns_map = 10;
  config.call_ns_access = 20;
  config.call_ns_unmap = 5;
  start(config);
  const CUdeviceptr address = mapped();
  EXPECT_EQ(firnGpuNow(), 130u);
  OK(cuMemUnmap(address, granule));
  EXPECT_EQ(firnGpuNow(), 135u);
}

// The same seed gives the same completions, in the same order, at the same times.
TEST_F(Time, deterministic) {
  auto run = [this](unsigned seed) {
    FirnGpuConfig config{};
    config.virtual_clock = 1;
    config.link_bytes_s = 3e9;
    config.link_latency_ns = 700;
    start(config);
    std::mt19937 random(seed);
    std::vector<CUstream> streams;
    for (unsigned i = 0; i < 5; ++i) streams.push_back(stream(i % 2));
    std::vector<CUevent> events;
    std::vector<uint64_t> log;
    void* host = nullptr;
    EXPECT_EQ(cuMemAllocHost_v2(&host, MiB), CUDA_SUCCESS);
    const CUdeviceptr address = mapped();
    for (int i = 0; i < 400; ++i) {
      const CUstream s = streams[random() % streams.size()];
      switch (random() % 5) {
        case 0: EXPECT_EQ(firnGpuBusy(s, random() % 100000), 0); break;
        case 1:
          EXPECT_EQ(cuMemcpyHtoDAsync_v2(address, host, 1 + random() % MiB, s), CUDA_SUCCESS);
          break;
        case 2:
          events.push_back(event());
          EXPECT_EQ(cuEventRecord(events.back(), s), CUDA_SUCCESS);
          break;
        case 3:
          if (events.empty()) break;
          EXPECT_EQ(cuStreamWaitEvent(s, events[random() % events.size()], 0), CUDA_SUCCESS);
          break;
        case 4:
          EXPECT_EQ(cuLaunchHostFunc(s, [](void* data) {
            static_cast<std::vector<uint64_t>*>(data)->push_back(firnGpuNow());
          }, &log), CUDA_SUCCESS);
          break;
      }
      if (random() % 20 == 0) firnGpuAdvanceTo(firnGpuNow() + random() % 200000);
    }
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    log.push_back(firnGpuNow());
    return log;
  };
  for (unsigned seed = 1; seed <= 10; ++seed) {
    const auto first = run(seed), second = run(seed);
    EXPECT_EQ(first, second) << "seed " << seed;
    EXPECT_TRUE(std::is_sorted(first.begin(), first.end()));
    EXPECT_NE(first, run(seed + 100));
  }
}

class WaitingClock : public VirtualGpu {
 protected:
  void SetUp() override {
    VirtualGpu::SetUp();
    auto opened = firn::open_driver();
    ASSERT_TRUE(opened) << describe(opened.error());
    driver = std::move(*opened);
    ASSERT_TRUE(driver->software);
    auto made = firn::open_virtual_clock(*driver);
    ASSERT_TRUE(made);
    clock = std::move(*made);
  }
  std::unique_ptr<firn::Driver> driver;
  std::unique_ptr<firn::VirtualClock> clock;
};

TEST_F(WaitingClock, waits_for_the_next_event_or_the_limit) {
  const uint64_t begin = clock->now_ns();
  ASSERT_EQ(firnGpuBusy(stream(), 1000), 0);
  clock->wait(400);
  EXPECT_EQ(clock->now_ns(), begin + 400);
  clock->wait(UINT64_MAX);
  EXPECT_EQ(clock->now_ns(), begin + 1000);
  clock->wait(50);  // nothing is queued: the limit
  EXPECT_EQ(clock->now_ns(), begin + 1050);
  EXPECT_DEATH(clock->wait(UINT64_MAX), "deadlock");
}

TEST_F(WaitingClock, a_notice_ends_one_wait) {
  ASSERT_EQ(firnGpuBusy(stream(), 1000), 0);
  const uint64_t begin = clock->now_ns();
  clock->notify();
  clock->wait(UINT64_MAX);
  EXPECT_EQ(clock->now_ns(), begin);
  clock->wait(UINT64_MAX);
  EXPECT_EQ(clock->now_ns(), begin + 1000);
}

TEST_F(WaitingClock, waits_for_a_store_too) {
  firn::SimulatedStoreOptions options;
  options.clock = clock.get();
  options.write_bytes_s = 1e9;
  options.latency_ns = 500;
  auto store = firn::open_simulated_store(options);
  clock->attach(store.get());
  auto slot = store->reserve(4096);
  ASSERT_TRUE(slot);
  std::vector<std::byte> buffer(8192);
  void* at = buffer.data();
  size_t room = buffer.size();
  at = std::align(firn::store_alignment, 4096, at, room);
  ASSERT_NE(at, nullptr);
  ASSERT_TRUE(store->attach_staging({static_cast<std::byte*>(at), 4096}));
  const uint64_t begin = clock->now_ns();
  ASSERT_TRUE(store->write(0, *slot, {static_cast<std::byte*>(at), 4096}, 1));
  const uint64_t due = store->next_completion_ns();
  ASSERT_GT(due, begin);
  ASSERT_EQ(firnGpuBusy(stream(), 1'000'000'000), 0);
  firn::StoreCompletion completion;
  for (int i = 0; i < 10 && store->poll(0, {&completion, 1}) == 0; ++i) clock->wait(UINT64_MAX);
  EXPECT_EQ(completion.tag, 1u);
  EXPECT_EQ(clock->now_ns(), due);
}

// A completion that belongs to another engine, and lies there unpolled, does not stop the time.
TEST_F(WaitingClock, goes_on_past_what_is_anothers) {
  struct Stale : firn::SimulatedStore {
    uint64_t next_completion_ns() const override { return 5; }
    firn::Result<void> attach_staging(std::span<std::byte>) override { return {}; }
    firn::Result<firn::Slot> reserve(size_t) override { return firn::Slot{1}; }
    firn::Result<void> write(unsigned, firn::Slot, std::span<const std::byte>,
                             uint64_t) override {
      return {};
    }
    firn::Result<void> read(unsigned, firn::Slot, std::span<std::byte>, uint64_t) override {
      return {};
    }
    bool cancel(unsigned, uint64_t) override { return false; }
    void discard(firn::Slot) override {}
    size_t poll(unsigned, std::span<firn::StoreCompletion>) override { return 0; }
    firn::StoreStats stats() const override { return {}; }
    void abandon() override {}
  } stale;
  clock->attach(&stale);
  firnGpuAdvanceTo(100);
  const CUstream s = stream();
  ASSERT_EQ(firnGpuBusy(s, 1'000'000), 0);
  clock->wait(UINT64_MAX);
  EXPECT_EQ(clock->now_ns(), 100u);  // it is due: look first
  for (int i = 0; i < 3000 && cuStreamQuery(s) != CUDA_SUCCESS; ++i) clock->wait(UINT64_MAX);
  EXPECT_EQ(cuStreamQuery(s), CUDA_SUCCESS);
}

TEST_F(SoftwareGpu, virtual_clock_needs_the_software_gpu) {
  firn::Driver real;
  auto clock = firn::open_virtual_clock(real);
  ASSERT_FALSE(clock);
  EXPECT_EQ(clock.error().code, firn::Code::not_supported);
}

}  // namespace
