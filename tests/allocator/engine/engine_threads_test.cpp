// Eight threads at one engine on the wall clock, over the budget together, while its driver and
// its store fail: each with a stream and blocks of its own, all with blocks that they read
// together, and with blocks that one gives to another. No byte is wrong, nothing is lost, nothing
// stays behind.
//
// FIRN_ROUNDS is how often each thread uses something (default 400), FIRN_SEED draws what.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "allocator/engine/engine.h"
#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr size_t KiB = 1024, MiB = 1024 * KiB;
constexpr unsigned threads = 8;
constexpr uint64_t budget_bytes = 20 * MiB;

uint64_t number(const char* name, uint64_t otherwise) {
  const char* words = std::getenv(name);
  return words ? std::strtoull(words, nullptr, 0) : otherwise;
}

std::atomic<uint64_t> wrong_words{0};
uint64_t pattern(uint64_t seed, uint64_t offset) { return (seed + offset) * 0x9E3779B97F4A7C15ull; }

/// One word in each 1 KiB, and the last.
template <class One>
void visit(void** params, One&& one) {
  uint64_t address, bytes, seed;
  std::memcpy(&address, params[0], 8);
  std::memcpy(&bytes, params[1], 8);
  std::memcpy(&seed, params[2], 8);
  for (uint64_t offset = 0; offset + 8 <= bytes; offset += KiB)
    one(*reinterpret_cast<uint64_t*>(address + offset), pattern(seed, offset));
  one(*reinterpret_cast<uint64_t*>(address + bytes - 8), pattern(seed, bytes - 8));
}
void fill(void** params, const unsigned*, const unsigned*) {
  visit(params, [](uint64_t& word, uint64_t value) { word = value; });
}
void verify(void** params, const unsigned*, const unsigned*) {
  visit(params, [](const uint64_t& word, uint64_t value) {
    if (word != value) wrong_words.fetch_add(1);
  });
}
const unsigned layout[][2] = {{0, 8}, {8, 8}, {16, 8}, {0, 0}};

/// A device on the wall clock, a store in memory with faults, an engine and who serves it.
class Machine {
 public:
  explicit Machine(Policy policy) {
    Result<std::unique_ptr<Driver>> driver = open_driver(std::getenv("FIRN_TEST_GPU"));
    FIRN_CHECK(driver, "%s", describe(driver.error()).c_str());
    driver_ = std::move(*driver);
    resolve(reset, "firnGpuReset");
    resolve(configure, "firnGpuConfigure");
    resolve(fail_rate, "firnGpuFailRate");
    resolve(counts, "firnGpuCounts");
    resolve(kernel_create, "firnGpuKernelCreate");
    resolve(launch, "cuLaunchKernel");
    reset();
    FirnGpuConfig config{};
    config.struct_bytes = sizeof config;
    config.devices = 1;
    config.memory_bytes = 256 * MiB;
    FIRN_CHECK(configure(&config) == 0 && driver_->init(0) == CUDA_SUCCESS, "the software GPU");
    FIRN_CHECK(kernel_create("fill", fill, layout, &fill_) == 0 &&
                   kernel_create("verify", verify, layout, &verify_) == 0, "kernels");
    SimulatedStoreOptions store;
    store.clock = &wall_clock();
    store.seed = number("FIRN_SEED", 1);
    store.write_error_rate = store.read_error_rate = store.corrupt_rate = .03;
    store.late_rate = store.short_rate = store.misdirected_read_rate = store.stale_read_rate = .03;
    store_ = open_simulated_store(store);
    EngineOptions options;
    FIRN_CHECK(driver_->device_primary_ctx_retain(&context, 0) == CUDA_SUCCESS, "context");
    options.context = context;
    options.budget_bytes = budget_bytes;
    options.host_bytes = 16 * MiB;
    options.piece_bytes = MiB / 2;
    options.span_bytes = 2 * MiB;
    options.watch_fraction = 0;
    options.sums = true;
    options.places = policy == Policy::lifetime;
    options.policy = policy;
    Result<std::unique_ptr<Engine>> opened =
        Engine::open(options, *driver_, store_.get(), 0, wall_clock());
    FIRN_CHECK(opened, "%s", describe(opened.error()).c_str());
    engine_ = std::move(*opened);
    server_ = std::thread([this] { serve(); });
  }
  ~Machine() {
    over_ = true;
    server_.join();
    engine_.reset();
  }

  Engine& engine() { return *engine_; }
  Driver& driver() { return *driver_; }

  void faults(bool on) {
    const double rate = on ? .02 : 0;
    for (const char* entry : {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuEventRecord"})
      fail_rate(entry, rate, 1, CUDA_ERROR_UNKNOWN);
    for (const char* entry : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"})
      fail_rate(entry, rate, 2, CUDA_ERROR_OUT_OF_MEMORY);
    if (!on) store_->end_faults();
  }
  bool run(bool writes, void* block, uint64_t bytes, uint64_t seed, CUstream stream) {
    auto at = reinterpret_cast<uint64_t>(block);
    void* params[] = {&at, &bytes, &seed};
    return launch(writes ? fill_ : verify_, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr) ==
           CUDA_SUCCESS;
  }
  FirnGpuCounts counted() const {
    FirnGpuCounts out{};
    FIRN_CHECK(counts(0, &out) == 0, "counts");
    return out;
  }
  SimulatedFaults met() const { return store_->faults(); }

  CUcontext context = nullptr;

 private:
  template <class T>
  void resolve(T& into, const char* name) {
    into = reinterpret_cast<T>(::dlsym(driver_->handle, name));
    FIRN_CHECK(into, "%s is not exported by the software GPU", name);
  }
  void serve() {
    while (!over_) {
      const bool changed = engine_->pump();
      if (engine_->ponder_due()) (void)engine_->ponder();
      if (!changed) wall_clock().wait(engine_->busy() ? 200'000 : 2'000'000);
    }
  }

  decltype(&firnGpuReset) reset;
  decltype(&firnGpuConfigure) configure;
  decltype(&firnGpuFailRate) fail_rate;
  decltype(&firnGpuCounts) counts;
  decltype(&firnGpuKernelCreate) kernel_create;
  CUresult (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     CUstream, void**, void**);
  void *fill_ = nullptr, *verify_ = nullptr;
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<SimulatedStore> store_;
  std::unique_ptr<Engine> engine_;
  std::atomic<bool> over_{false};
  std::thread server_;
};

struct Made {
  void* block = nullptr;
  uint64_t bytes = 0, seed = 0;
};

/// A thread with its own stream. Errors are answers while there are faults.
class Worker {
 public:
  Worker(Machine& machine, unsigned number, const std::vector<Made>& shared,
         std::array<std::atomic<Made*>, 4>& passed)
      : machine_(machine), engine_(machine.engine()), shared_(shared), passed_(passed),
        random_(::number("FIRN_SEED", 1) * 1000 + number) {
    Driver::ContextGuard context(machine_.driver(), machine_.context);
    FIRN_CHECK(machine_.driver().stream_create(&stream_, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS,
               "stream");
  }

  void round() {
    if (mine_.size() < 3) make();
    use(shared_[random_() % shared_.size()], false);
    if (mine_.empty()) return;
    const size_t at = random_() % mine_.size();
    use(*mine_[at], random_() % 4 == 0);
    switch (random_() % 16) {
      case 0: case 1: case 2: case 3: give(at); break;
      case 4: case 5: pass(at); break;
      case 6: (void)engine_.prefetch(mine_[at]->block, mine_[at]->bytes, stream_); break;
      case 7: (void)engine_.cold(mine_[at]->block, mine_[at]->bytes, stream_); break;
      case 8: hold(*mine_[at]); break;
      case 9: look(); break;
      case 10: pin(*mine_[at]); break;
      default: break;
    }
  }
  /// Without faults: everything is there.
  void end() {
    for (auto& made : mine_) use(*made, false, true);
    while (!mine_.empty()) give(0);
    Driver::ContextGuard context(machine_.driver(), machine_.context);
    EXPECT_EQ(machine_.driver().stream_synchronize(stream_), CUDA_SUCCESS);
    engine_.stream_ends(stream_);
    EXPECT_EQ(machine_.driver().stream_destroy(stream_), CUDA_SUCCESS);
  }
  uint64_t uses = 0, errors = 0;

 private:
  void make() {
    const bool small = random_() % 4 == 0;
    const uint64_t bytes = small ? 4 * KiB + random_() % (256 * KiB) / 8 * 8
                                 : MiB + random_() % (MiB / 2) / 8 * 8;
    Result<void*> block = engine_.allocate(bytes, stream_);
    if (!block) return failed(block.error());
    auto made = std::make_unique<Made>(Made{*block, bytes, random_()});
    if (use(*made, true)) mine_.push_back(std::move(made));
    else EXPECT_TRUE(engine_.free(*block));
  }
  bool use(const Made& made, bool writes, bool must = false) {
    const Access access = writes ? Access::write : Access::read;
    Result<Hold> hold = engine_.touch(made.block, stream_, access);
    if (!hold) {
      EXPECT_FALSE(must) << describe(hold.error());
      failed(hold.error());
      return false;
    }
    Driver::ContextGuard context(machine_.driver(), machine_.context);
    EXPECT_TRUE(machine_.run(writes, made.block, made.bytes, made.seed, stream_));
    engine_.release(*hold, stream_);
    ++uses;
    return true;
  }
  void failed(const Error& error) {
    ++errors;
    EXPECT_NE(error.code, Code::lost) << describe(error);
    EXPECT_NE(error.code, Code::invalid_argument) << describe(error);
  }
  void give(size_t at) {
    EXPECT_TRUE(engine_.record_stream(mine_[at]->block, stream_));
    Result<void> done = engine_.free(mine_[at]->block);
    EXPECT_TRUE(done) << describe(done.error());
    mine_.erase(mine_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  /// To whoever looks there next; what was there is ours from here on.
  void pass(size_t at) {
    {
      Driver::ContextGuard context(machine_.driver(), machine_.context);
      EXPECT_EQ(machine_.driver().stream_synchronize(stream_), CUDA_SUCCESS);
    }
    Made* other = passed_[random_() % passed_.size()].exchange(mine_[at].release());
    if (other) mine_[at].reset(other);
    else mine_.erase(mine_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  void hold(const Made& made) {
    const Hold held = engine_.hold_apart(made.block);
    std::this_thread::yield();
    if (held.block) engine_.release_apart(held);
  }
  void pin(const Made& made) {
    if (Result<void> done = engine_.pin(made.block, "a test"); !done) return failed(done.error());
    EXPECT_TRUE(engine_.unpin(made.block));
  }
  void look() {
    (void)engine_.stats();
    (void)engine_.blocks();
    (void)engine_.tallies();
    (void)engine_.find(shared_[0].block);
    if (random_() % 4 == 0) engine_.trim();
    if (random_() % 16 == 0) engine_.spill_all();
  }

  Machine& machine_;
  Engine& engine_;
  const std::vector<Made>& shared_;
  std::array<std::atomic<Made*>, 4>& passed_;
  std::mt19937_64 random_;
  CUstream stream_ = nullptr;
  std::vector<std::unique_ptr<Made>> mine_;
};

void run(Policy policy) {
  wrong_words = 0;
  Machine machine(policy);
  Engine& engine = machine.engine();
  std::vector<Made> shared;
  std::array<std::atomic<Made*>, 4> passed{};
  {
    Driver::ContextGuard context(machine.driver(), machine.context);
    for (uint64_t i = 0; i < 6; ++i) {
      Result<void*> block = engine.allocate(MiB, nullptr);
      ASSERT_TRUE(block) << describe(block.error());
      shared.push_back({*block, MiB, i + 1});
      Result<Hold> hold = engine.touch(*block, nullptr, Access::write);
      ASSERT_TRUE(hold) << describe(hold.error());
      ASSERT_TRUE(machine.run(true, *block, MiB, i + 1, nullptr));
      engine.release(*hold, nullptr);
    }
    ASSERT_EQ(machine.driver().ctx_synchronize(), CUDA_SUCCESS);
  }
  std::vector<std::unique_ptr<Worker>> workers;
  for (unsigned i = 0; i < threads; ++i)
    workers.push_back(std::make_unique<Worker>(machine, i, shared, passed));
  machine.faults(true);
  const uint64_t rounds = number("FIRN_ROUNDS", 400);
  std::vector<std::thread> pool;
  for (auto& worker : workers)
    pool.emplace_back([&] {
      for (uint64_t i = 0; i < rounds && !testing::Test::HasFailure(); ++i) worker->round();
    });
  for (std::thread& thread : pool) thread.join();
  machine.faults(false);
  uint64_t uses = 0, errors = 0;
  for (auto& worker : workers) {
    worker->end();
    uses += worker->uses;
    errors += worker->errors;
  }
  for (auto& place : passed)
    if (Made* made = place.exchange(nullptr)) {
      EXPECT_TRUE(engine.free(made->block));
      delete made;
    }
  for (const Made& made : shared) EXPECT_TRUE(engine.free(made.block));
  engine.check();
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.lost_blocks, 0u);
  EXPECT_GT(stats.spilled_bytes, 0u);
  EXPECT_GT(stats.faulted_bytes, 0u);
  EXPECT_EQ(wrong_words.load(), 0u);
  EXPECT_LE(machine.counted().frame_bytes_peak, budget_bytes);
  EXPECT_GT(uses, threads * rounds / 2);
  std::printf("%u threads x %llu rounds: %llu uses, %llu errors, %llu MiB spilled, "
              "%llu read errors\n",
              threads, static_cast<unsigned long long>(rounds),
              static_cast<unsigned long long>(uses), static_cast<unsigned long long>(errors),
              static_cast<unsigned long long>(stats.spilled_bytes >> 20),
              static_cast<unsigned long long>(machine.met().read_errors));
}

}  // namespace

TEST(EngineThreads, by_age) { run(Policy::age); }
TEST(EngineThreads, by_lifetimes) { run(Policy::lifetime); }
