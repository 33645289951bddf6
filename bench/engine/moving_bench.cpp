// What it takes to send a block away and to have it back, against its size, by Google Benchmark: on
// the software GPU with the wall clock, whose copies are memcpy, to host memory and to real files.
//
//   FIRN_TEST_GPU=build/backing/gpu/software/libcuda.so.1 build/bench/engine/moving_bench DIR
//
// spill: from the word that it is cold until its memory is another's. fault: from the touch until a
// stream may use it. Each time it was written meanwhile, so that no older copy serves. In the file
// tier so many other blocks leave that host memory keeps next to nothing of this one.
#include <benchmark/benchmark.h>

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/engine/engine.h"
#include "firn/clock.h"
#include "firn/driver.h"
#include "firn/software_gpu.h"
#include "firn/store.h"

namespace {

using namespace firn;

constexpr uint64_t MiB = uint64_t{1} << 20;
constexpr uint64_t memory = 2048 * MiB, budget = 1024 * MiB;
// The file tier: what passes through host memory, and what all blocks together have at least.
constexpr uint64_t passage = 64 * MiB, in_files_least = 512 * MiB;

std::string directory;

[[noreturn]] void give_up(const std::string& words) {
  std::fprintf(stderr, "moving_bench: %s\n", words.c_str());
  std::exit(1);
}

template <class T>
T must(Result<T> result) {
  if (!result) give_up(describe(result.error()));
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

/// A GPU, an engine over it and, for the file tier, a store.
class Machine {
 public:
  Machine(bool files, size_t bytes) : files_(files) {
    const char* library = std::getenv("FIRN_TEST_GPU");
    if (!library) give_up("FIRN_TEST_GPU must name the software GPU's library");
    driver_ = must(open_driver(library));
    const auto entry = [&](const char* name) { return ::dlsym(driver_->handle, name); };
    reinterpret_cast<decltype(&firnGpuReset)>(entry("firnGpuReset"))();
    FirnGpuConfig config{};
    config.struct_bytes = sizeof config;
    config.devices = 1;
    config.memory_bytes = memory;
    if (reinterpret_cast<decltype(&firnGpuConfigure)>(entry("firnGpuConfigure"))(&config) != 0 ||
        driver_->init(0) != CUDA_SUCCESS)
      give_up("the software GPU does not start");
    EngineOptions options;
    if (driver_->device_primary_ctx_retain(&options.context, 0) != CUDA_SUCCESS)
      give_up("no context");
    context_ = options.context;
    options.budget_bytes = budget;
    options.host_bytes = files ? passage : 2 * bytes + passage;
    options.watch_fraction = 0;
    if (files) {
      StoreOptions store;
      store.dirs = {directory};
      store.clock = &wall_clock();
      store_ = must(open_store(store));
    }
    engine_ = must(Engine::open(options, *driver_, store_.get(), 0, wall_clock()));
    Driver::ContextGuard guard(*driver_, context_);
    if (driver_->stream_create(&stream_, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
      give_up("no stream");
    const size_t count = files ? std::max<size_t>(3, in_files_least / bytes) : 1;
    for (size_t i = 0; i < count; ++i) {
      blocks_.push_back(must(engine_->allocate(bytes, stream_)));
      use(blocks_.back());
      spill(blocks_.back());
    }
  }
  ~Machine() {
    Driver::ContextGuard guard(*driver_, context_);
    (void)driver_->ctx_synchronize();
    (void)driver_->stream_destroy(stream_);
  }

  /// The block that left longest ago.
  void* next() {
    void* block = blocks_[at_];
    at_ = (at_ + 1) % blocks_.size();
    while (files_ && state(block) != "spilled") pump();
    return block;
  }
  void use(void* block) {
    Hold hold = must(engine_->touch(block, stream_, Access::write));
    engine_->release(hold, stream_);
    Driver::ContextGuard guard(*driver_, context_);
    if (driver_->stream_synchronize(stream_) != CUDA_SUCCESS) give_up("the stream failed");
  }
  void spill(void* block) {
    if (Result<void> told = engine_->cold(block, 1); !told) give_up(describe(told.error()));
    while (state(block) == "spilling") pump();
    if (state(block) == "resident") give_up("a block did not leave");
  }

 private:
  std::string_view state(void* block) const { return engine_->find(block)->state; }
  /// As the service thread does it.
  void pump() {
    if (!engine_->pump()) wall_clock().wait(20'000);
  }

  const bool files_;
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Engine> engine_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  std::vector<void*> blocks_;
  size_t at_ = 0;
};

void measure(benchmark::State& state, bool files, bool fault) {
  const auto bytes = static_cast<size_t>(state.range(0));
  Machine machine(files, bytes);
  using Clock = std::chrono::steady_clock;
  for (auto _ : state) {
    void* block = machine.next();
    const auto begin = Clock::now();
    machine.use(block);
    const auto back = Clock::now();
    machine.spill(block);
    const std::chrono::duration<double> taken = fault ? back - begin : Clock::now() - back;
    state.SetIterationTime(taken.count());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * state.range(0));
}
void spill_to_host(benchmark::State& state) { measure(state, false, false); }
void fault_from_host(benchmark::State& state) { measure(state, false, true); }
void spill_to_files(benchmark::State& state) { measure(state, true, false); }
void fault_from_files(benchmark::State& state) { measure(state, true, true); }
#define AGAINST_SIZE(function) \
  BENCHMARK(function)->RangeMultiplier(4)->Range(MiB, 256 * MiB)->ArgName("bytes")->UseManualTime()
AGAINST_SIZE(spill_to_host);
AGAINST_SIZE(fault_from_host);
AGAINST_SIZE(spill_to_files);
AGAINST_SIZE(fault_from_files);

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc != 2) give_up("usage: moving_bench DIR");
  directory = argv[1];
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
