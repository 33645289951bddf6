#include "allocator/simulate/machine.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

#include "allocator/memory/frames.h"
#include "allocator/simulate/greedy.h"
#include "firn/check.h"

namespace firn::simulate {

namespace {
template <class T>
bool resolve(T& into, void* handle, const char* name) {
  into = reinterpret_cast<T>(::dlsym(handle, name));
  return into != nullptr;
}
}  // namespace

void ServiceClock::wait(uint64_t ns_max) {
  if (engine_ && !pumping_) {
    const uint64_t before = now_ns();
    pumping_ = true;
    (void)engine_->pump();
    (void)engine_->ponder();  // beside the program: takes no time of its clock
    pumping_ = false;
    // Time advanced in the driver: the caller's event may have come meanwhile.
    if (ns_max == UINT64_MAX && now_ns() != before) return;
  }
  if (now_ns() > give_up_ns_) give_up();
  turns_.wait(ns_max);
}

void ServiceClock::give_up() {
  std::string line = "firn simulate: no progress: " + (where_ ? where_() : std::string());
  if (engine_) {
    const EngineStats stats = engine_->stats();
    line += fmt::format("; on the device {} of {} bytes, {} faults, {} evictions so far",
                        stats.device_bytes, stats.budget_bytes, stats.faults, stats.evictions);
    for (const PinnedBytes& pinned : stats.pinned)
      line += fmt::format("; {} bytes {}", pinned.bytes, pinned.reason);
    for (const std::string& trouble : stats.trouble) line += "; " + trouble;
  }
  std::fprintf(stderr, "%s\n", line.c_str());
  std::abort();
}

Result<std::unique_ptr<Machine>> Machine::open(const MachineOptions& options) {
  std::unique_ptr<Machine> machine(new Machine(options));
  if (Result<void> done = machine->start_gpu(); !done) return done.error();
  if (Result<void> done = machine->start_engine(); !done) return done.error();
  return machine;
}

Result<void> Machine::start_gpu() {
  Result<std::unique_ptr<Driver>> driver = open_driver(options_.gpu_library);
  if (!driver) return driver.error();
  driver_ = std::move(*driver);
  void* handle = driver_->handle;
  if (!resolve(configure_, handle, "firnGpuConfigure") ||
      !resolve(reset_, handle, "firnGpuReset") || !resolve(busy_, handle, "firnGpuBusy") ||
      !resolve(counts_, handle, "firnGpuCounts") || !resolve(observe_, handle, "firnGpuObserve"))
    return make_error(Code::not_supported, 0,
                      options_.gpu_library + " is not this version's software GPU");
  reset_();
  FirnGpuConfig config{};
  config.struct_bytes = sizeof config;
  config.devices = 1;
  config.memory_bytes = options_.gpu_bytes;
  config.link_bytes_s = options_.link_bytes_s;
  config.virtual_clock = 1;
  config.no_bytes = 1;
  if (options_.driver_costs) {
    config.call_ns_create = create_ns;
    config.call_ns_map = map_ns;
    config.call_ns_access = access_ns;
    config.call_ns_unmap = unmap_ns;
  }
  if (configure_(&config) != 0)
    return make_error(Code::not_supported, 0,
                      options_.gpu_library + " refuses to simulate without bytes");
  if (CUresult result = driver_->init(0); result != CUDA_SUCCESS)
    return driver_->error("cuInit", result);
  if (CUresult result = driver_->device_primary_ctx_retain(&context_, 0); result != CUDA_SUCCESS)
    return driver_->error("cuDevicePrimaryCtxRetain", result);
  Result<CUstream> stream = make_stream();
  if (!stream) return stream.error();
  stream_ = *stream;
  return {};
}

Result<CUstream> Machine::make_stream() {
  Driver::ContextGuard guard(*driver_, context_);
  CUstream stream = nullptr;
  if (CUresult result = driver_->stream_create(&stream, CU_STREAM_NON_BLOCKING);
      result != CUDA_SUCCESS)
    return driver_->error("cuStreamCreate", result);
  return stream;
}

Result<void> Machine::start_engine() {
  Result<std::unique_ptr<VirtualClock>> clock = open_virtual_clock(*driver_);
  if (!clock) return clock.error();
  clock_ = std::move(*clock);
  service_ = std::make_unique<ServiceClock>(*clock_);
  SimulatedStoreOptions store;
  store.clock = clock_.get();
  store.read_bytes_s = options_.ssd_read_bytes_s;
  store.write_bytes_s = options_.ssd_write_bytes_s;
  store.latency_ns = options_.ssd_latency_ns;
  store.keep_bytes = false;
  disks_ = std::make_unique<Disks>(options_.ssds, store, *clock_);
  EngineOptions engine;
  engine.device = 0;
  engine.context = context_;
  engine.budget_bytes = options_.gpu_bytes / granule_bytes * granule_bytes;
  engine.host_bytes = options_.host_bytes;
  engine.piece_bytes = options_.piece();
  engine.watch_fraction = options_.watch_fraction;
  engine.policy = options_.policy == ComparedPolicy::age ? Policy::age : Policy::lifetime;
  if (options_.policy == ComparedPolicy::oracle) baseline_ = std::make_unique<Oracle>();
  if (options_.policy == ComparedPolicy::greedy) baseline_ = std::make_unique<Greedy>();
  engine.baseline = baseline_.get();
  engine.spare_fraction = options_.spare_fraction;
  engine.no_bytes = true;
  Result<std::unique_ptr<Engine>> opened =
      Engine::open(engine, *driver_, disks_.get(), 0, *service_);
  if (!opened) return opened.error();
  engine_ = std::move(*opened);
  service_->serve(engine_.get());
  return {};
}

void Machine::launch(uint64_t ns) {
  const int result = busy_(stream_, ns);
  FIRN_CHECK(result == 0, "firnGpuBusy: %d", result);
}

uint64_t Machine::check_peak_frame_bytes() const {
  FirnGpuCounts counts{};
  FIRN_CHECK(counts_(0, &counts) == 0, "no counts of device 0");
  FIRN_CHECK(counts.used_bytes_peak <= options_.gpu_bytes,
             "the GPU held %llu bytes, it has %llu", (unsigned long long)counts.used_bytes_peak,
             (unsigned long long)options_.gpu_bytes);
  return counts.used_bytes_peak;
}

Machine::~Machine() {
  if (engine_) {
    service_->serve(nullptr);
    engine_.reset();
    (void)check_peak_frame_bytes();
  }
  disks_.reset();
  if (reset_) reset_();
}

}  // namespace firn::simulate
