// The virtual clock: modelled times to the nanosecond, determinism, waiting.
#include <sys/resource.h>

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
  // The other way, from beside them.
  OK(cuMemcpyDtoHAsync_v2(static_cast<char*>(host) + 2 * MiB, address + MiB, 500000, c));
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
    firn::Result<firn::Slot> reserve(size_t, bool) override { return firn::Slot{1}; }
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

class WithoutBytes : public SoftwareGpu {
 protected:
  void SetUp() override {
    FirnGpuConfig config{};
    config.memory_bytes = 512ull << 30;
    config.virtual_clock = 1;
    config.link_bytes_s = 1e9;
    config.link_latency_ns = 1000;
    config.memory_bytes_s = 1e11;
    config.no_bytes = 1;
    start(config);
  }
  static long peak_kib() {
    rusage usage{};
    EXPECT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss;
  }
};

TEST_F(WithoutBytes, needs_the_virtual_clock) {
  firnGpuReset();
  FirnGpuConfig config{};
  config.struct_bytes = sizeof config;
  config.no_bytes = 1;
  EXPECT_EQ(firnGpuConfigure(&config), -1);
  config.virtual_clock = 1;
  EXPECT_EQ(firnGpuConfigure(&config), 0);
}

// Far more mappings than vm.max_map_count would let a process have.
TEST_F(WithoutBytes, hundreds_of_gibibytes_cost_nothing) {
  const long before = peak_kib();
  const size_t frames = (400ull << 30) / granule;
  const CUdeviceptr address = reserve(frames * granule);
  for (size_t i = 0; i < frames; ++i) {
    const auto handle = frame();
    OK(cuMemMap(address + i * granule, granule, 0, handle, 0));
    OK(cuMemRelease(handle));
  }
  const CUmemAccessDesc a = access();
  OK(cuMemSetAccess(address, frames * granule, &a, 1));
  EXPECT_EQ(counts().frame_bytes, frames * granule);
  const CUstream s = stream();
  const uint64_t begin = firnGpuNow();
  OK(cuMemsetD8Async(address, 1, 100ull << 30, s));
  OK(cuStreamSynchronize(s));
  EXPECT_EQ(firnGpuNow() - begin, static_cast<uint64_t>(double(100ull << 30) / 1e11 * 1e9));
  OK(cuMemUnmap(address, frames * granule));
  EXPECT_EQ(counts().frame_bytes, 0u);
  EXPECT_LT(peak_kib() - before, 200 << 10) << "of bookkeeping";
}

TEST_F(WithoutBytes, copies_take_their_time_and_move_nothing) {
  const CUdeviceptr address = mapped();
  std::vector<char> page(2 * 4096, 'x');
  void* host = page.data();
  OK(cuMemHostRegister_v2(host, page.size(), 0));
  const CUstream s = stream();
  const uint64_t begin = firnGpuNow();
  OK(cuMemcpyHtoDAsync_v2(address, host, 4096, s));
  OK(cuMemcpyDtoHAsync_v2(static_cast<char*>(host) + 4096, address, 4096, s));
  EXPECT_EQ(firnGpuNow(), begin) << "registered memory: asynchronous";
  OK(cuStreamSynchronize(s));
  EXPECT_EQ(firnGpuNow() - begin, 2u * (4096 + 1000));
  EXPECT_EQ(page[5000], 'x');
  EXPECT_EQ(counts().copied_bytes, 2u * 4096);
  OK(cuMemHostUnregister(host));
}

TEST_F(WithoutBytes, what_is_forbidden_stays_forbidden) {
  const CUdeviceptr address = mapped();
  const CUstream s = stream();
  OK(cuMemsetD8Async(address, 0, granule, s));
  EXPECT_DEATH(cuMemUnmap(address, granule), "used by work that is still queued");
  EXPECT_EQ(cuMemsetD8Async(address + granule, 0, 1, s), CUDA_ERROR_INVALID_VALUE);
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(address) = 1, "");
  OK(cuStreamSynchronize(s));
}

struct Seen {
  std::string entry;
  void* stream;
  uint64_t begin_ns, end_ns, bytes;
};
void see(void* context, const char* entry, void* stream, uint64_t begin, uint64_t end,
         uint64_t bytes) {
  static_cast<std::vector<Seen>*>(context)->push_back({entry, stream, begin, end, bytes});
}

TEST_F(WithoutBytes, the_observer_is_told_what_took_time) {
  const CUdeviceptr address = mapped();
  std::vector<char> host(4096);
  OK(cuMemHostRegister_v2(host.data(), host.size(), 0));
  const CUstream a = stream(), b = stream();
  std::vector<Seen> seen;
  firnGpuObserve(see, &seen);
  const uint64_t begin = firnGpuNow();
  ASSERT_EQ(firnGpuBusy(a, 500), 0);
  const CUevent e = event();
  OK(cuEventRecord(e, a));  // takes no time: not told
  OK(cuMemcpyHtoDAsync_v2(address, host.data(), 4096, b));
  OK(cuStreamSynchronize(b));
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].entry, "firnGpuBusy");
  EXPECT_EQ(seen[0].stream, a);
  EXPECT_EQ(seen[0].end_ns - seen[0].begin_ns, 500u);
  EXPECT_EQ(seen[1].entry, "cuMemcpyHtoDAsync");
  EXPECT_EQ(seen[1].stream, b);
  EXPECT_EQ(seen[1].begin_ns, begin);
  EXPECT_EQ(seen[1].end_ns, begin + 4096 + 1000);
  EXPECT_EQ(seen[1].bytes, 4096u);
  firnGpuObserve(nullptr, nullptr);
  ASSERT_EQ(firnGpuBusy(a, 500), 0);
  OK(cuStreamSynchronize(a));
  EXPECT_EQ(seen.size(), 2u);
  OK(cuMemHostUnregister(host.data()));
}

}  // namespace
