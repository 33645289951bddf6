#include "tests/allocator/simulation.h"

#include <cstring>

#include "allocator/simulate/greedy.h"

namespace firn::test {

uint64_t Simulation::wrong_bytes = 0;
std::string Simulation::first_wrong;

namespace {

// Sparse, so that a thousand seeds run in a minute: one word in every 1 KiB, first and last
// included.
constexpr size_t step = 1024;

uint64_t mix(uint64_t x) {
  x ^= x >> 31;
  x *= 0x9E3779B97F4A7C15ull;
  return x ^ (x >> 29);
}

template <class Visit>
void visit(uint64_t address, uint64_t bytes, Visit&& one) {
  if (bytes < 8) return;
  for (uint64_t offset = 0; offset + 8 <= bytes; offset += step) one(address + offset, offset);
  uint64_t last = (bytes - 8) / 8 * 8;
  one(address + last, last);
}

void fill_kernel(void** params, const unsigned*, const unsigned*) {
  uint64_t address, bytes, seed;
  std::memcpy(&address, params[0], 8);
  std::memcpy(&bytes, params[1], 8);
  std::memcpy(&seed, params[2], 8);
  visit(address, bytes, [&](uint64_t at, uint64_t offset) {
    *reinterpret_cast<uint64_t*>(at) = mix(seed + offset);
  });
}

void verify_kernel(void** params, const unsigned*, const unsigned*) {
  uint64_t address, bytes, seed;
  std::memcpy(&address, params[0], 8);
  std::memcpy(&bytes, params[1], 8);
  std::memcpy(&seed, params[2], 8);
  visit(address, bytes, [&](uint64_t at, uint64_t offset) {
    if (*reinterpret_cast<uint64_t*>(at) == mix(seed + offset)) return;
    if (Simulation::wrong_bytes++ == 0)
      Simulation::first_wrong = "block " + std::to_string(address) + " offset " +
                                std::to_string(offset) + " of " + std::to_string(bytes);
  });
}

uint64_t* word_at(const OnHost& there, uint64_t offset) {
  for (const OnHost::Piece& piece : there.pieces)
    if (offset - piece.offset < piece.bytes)
      return reinterpret_cast<uint64_t*>(piece.data + (offset - piece.offset));
  FIRN_CHECK(false, "no piece has offset %llu", (unsigned long long)offset);
}

const unsigned layout[][2] = {{0, 8}, {8, 8}, {16, 8}, {0, 0}};

template <class T>
void resolve(T& into, void* handle, const char* name) {
  into = reinterpret_cast<T>(::dlsym(handle, name));
  FIRN_CHECK(into, "%s is not exported by the software GPU", name);
}

}  // namespace

Simulation::Simulation(const SimulationOptions& options) {
  wrong_bytes = 0;
  first_wrong.clear();
  const char* library = std::getenv("FIRN_TEST_GPU");
  FIRN_CHECK(library, "FIRN_TEST_GPU must name the software GPU's library");
  Result<std::unique_ptr<Driver>> driver = open_driver(library);
  FIRN_CHECK(driver, "%s", describe(driver.error()).c_str());
  driver_ = std::move(*driver);
  void* handle = driver_->handle;
  resolve(gpu_.configure, handle, "firnGpuConfigure");
  resolve(gpu_.reset, handle, "firnGpuReset");
  resolve(gpu_.advance_to, handle, "firnGpuAdvanceTo");
  resolve(gpu_.now, handle, "firnGpuNow");
  resolve(gpu_.next_event, handle, "firnGpuNextEvent");
  resolve(gpu_.fail_at, handle, "firnGpuFailAt");
  resolve(gpu_.fail_from, handle, "firnGpuFailFrom");
  resolve(gpu_.die, handle, "firnGpuDie");
  resolve(gpu_.fail_rate, handle, "firnGpuFailRate");
  resolve(gpu_.fallible_calls, handle, "firnGpuFallibleCalls");
  resolve(gpu_.counts, handle, "firnGpuCounts");
  resolve(gpu_.reserved_bytes, handle, "firnGpuReservedBytes");
  resolve(gpu_.kernel_create, handle, "firnGpuKernelCreate");
  resolve(gpu_.busy, handle, "firnGpuBusy");
  resolve(gpu_.launch, handle, "cuLaunchKernel");
  gpu_.reset();
  gpu_.fail_at("*", 0, 0);
  FirnGpuConfig config{};
  config.struct_bytes = sizeof config;
  config.devices = options.devices;
  config.memory_bytes = options.memory_bytes;
  config.link_bytes_s = 16e9;
  config.link_latency_ns = 10'000;
  config.virtual_clock = 1;
  FIRN_CHECK(gpu_.configure(&config) == 0, "configure");
  FIRN_CHECK(driver_->init(0) == CUDA_SUCCESS, "cuInit");
  Result<std::unique_ptr<VirtualClock>> clock = open_virtual_clock(*driver_);
  FIRN_CHECK(clock, "%s", describe(clock.error()).c_str());
  clock_ = std::move(*clock);
  if (options.on_wait) told_clock_ = std::make_unique<ToldClock>(*clock_, options.on_wait);
  Clock& engines_clock = told_clock_ ? static_cast<Clock&>(*told_clock_) : *clock_;
  if (options.with_store) {
    SimulatedStoreOptions store = options.store;
    store.clock = clock_.get();
    store_ = open_simulated_store(store);
    clock_->attach(store_.get());
    if (options.in_front_of_store) in_front_ = options.in_front_of_store(*store_);
  }
  Store* const engines_store = in_front_ ? in_front_.get() : store_.get();
  FIRN_CHECK(gpu_.kernel_create("fill", fill_kernel, layout, &fill_) == 0, "kernel");
  FIRN_CHECK(gpu_.kernel_create("verify", verify_kernel, layout, &verify_) == 0, "kernel");
  for (int device = 0; device < options.devices; ++device) {
    EngineOptions engine;
    engine.device = device;
    FIRN_CHECK(driver_->device_primary_ctx_retain(&engine.context, device) == CUDA_SUCCESS,
               "context");
    contexts_.push_back(engine.context);
    engine.budget_bytes = options.budget_bytes;
    engine.host_bytes = options.host_bytes;
    engine.piece_bytes = options.piece_bytes;
    engine.span_bytes = options.span_bytes;
    engine.watch_fraction = options.watch_fraction;
    engine.adversarial = options.adversarial;
    engine.verify = options.verify;
    engine.guard = options.guard;
    engine.poison = options.poison;
    engine.places = options.places;
    engine.no_wall_clock = true;
    engine.served = options.served;
    engine.notices = options.notices;
    engine.sums = options.sums;
    if (options.host_room) {
      engine.host_room = options.host_room;
      engine.host_left = &host_left_;
      engine.host_ahead = true;
    }
    engine.io_patience_ns = options.io_patience_ns;
    engine.slow_works = options.slow_works;
    engine.policy = options.policy;
    if (options.greedy)
      engine.baseline = baselines_.emplace_back(std::make_unique<simulate::Greedy>()).get();
    if (options.fail_entry)
      gpu_.fail_at(options.fail_entry, options.fail_nth, CUDA_ERROR_OUT_OF_MEMORY);
    Result<std::unique_ptr<Engine>> opened = Engine::open(
        engine, *driver_, engines_store, static_cast<unsigned>(device), engines_clock,
        options.trace);
    if (!opened) {
      error = describe(opened.error());
      return;
    }
    engines_.push_back(std::move(*opened));
  }
}

Simulation::~Simulation() {
  synchronize();
  engines_.clear();
  for (auto [device, stream] : streams_) {
    Driver::ContextGuard context(*driver_, contexts_[device]);
    (void)driver_->stream_destroy(stream);
  }
  if (clock_) clock_->attach(nullptr);
}

CUstream Simulation::make_stream(int device) {
  Driver::ContextGuard context(*driver_, contexts_[device]);
  CUstream stream = nullptr;
  FIRN_CHECK(driver_->stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS, "stream");
  streams_.push_back({device, stream});
  return stream;
}

FirnGpuCounts Simulation::counts(int device) const {
  FirnGpuCounts counts{};
  FIRN_CHECK(gpu_.counts(device, &counts) == 0, "counts of device %d", device);
  return counts;
}

void Simulation::fill(const OnHost& there, size_t bytes, uint64_t seed) {
  visit(0, bytes, [&](uint64_t, uint64_t offset) { *word_at(there, offset) = mix(seed + offset); });
}

void Simulation::verify(const OnHost& there, size_t bytes, uint64_t seed) {
  visit(0, bytes, [&](uint64_t, uint64_t offset) {
    if (*word_at(there, offset) == mix(seed + offset)) return;
    if (wrong_bytes++ == 0)
      first_wrong = "in host memory, offset " + std::to_string(offset) + " of " +
                    std::to_string(bytes);
  });
}

bool Simulation::fill(int device, void* address, size_t bytes, uint64_t seed, CUstream stream) {
  Driver::ContextGuard context(*driver_, contexts_[device]);
  auto at = reinterpret_cast<uint64_t>(address);
  uint64_t size = bytes;
  void* params[] = {&at, &size, &seed};
  return gpu_.launch(fill_, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr) == CUDA_SUCCESS;
}

bool Simulation::verify(int device, void* address, size_t bytes, uint64_t seed, CUstream stream) {
  Driver::ContextGuard context(*driver_, contexts_[device]);
  auto at = reinterpret_cast<uint64_t>(address);
  uint64_t size = bytes;
  void* params[] = {&at, &size, &seed};
  return gpu_.launch(verify_, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr) == CUDA_SUCCESS;
}

void Simulation::synchronize() {
  for (CUcontext context : contexts_) {
    Driver::ContextGuard guard(*driver_, context);
    (void)driver_->ctx_synchronize();
  }
}

}  // namespace firn::test
