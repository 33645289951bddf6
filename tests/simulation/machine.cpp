#include "tests/simulation/machine.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "allocator/simulate/greedy.h"
#include "firn/check.h"
#include "tests/simulation/tag.h"

namespace firn::sim {

namespace {

Machine* running = nullptr;  // whose kernels run

struct Arguments {
  uint64_t device, address, bytes, block, version;
};
const unsigned layout[][2] = {{0, 8}, {8, 8}, {16, 8}, {24, 8}, {32, 8}, {0, 0}};

Arguments arguments_of(void** params) {
  uint64_t words[5];
  for (int i = 0; i < 5; ++i) std::memcpy(&words[i], params[i], 8);
  return {words[0], words[1], words[2], words[3], words[4]};
}

void failed(const char* oracle, const Arguments& of, const char* what, uint64_t at,
            uint64_t found) {
  if (!running->wrong_oracle.empty()) return;
  running->wrong_oracle = oracle;
  const Tag tag{found};
  running->wrong = fmt::format(
      "a kernel {} block {} ({} bytes at {:#x}, device {}), version {}: at 4 KiB number {} there "
      "is {:#x} (block {} version {} number {})",
      what, of.block, of.bytes, of.address, of.device, of.version, at, found, tag.block(),
      tag.version(), tag.page());
}

const char* oracle_of(int result, uint64_t found) {
  if (result == firn_gpu_tags_unmapped) return "kernel_unmapped";
  if (result == firn_gpu_tags_read_only) return "kernel_read_only";
  if (result == firn_gpu_tags_early || found == firn_gpu_tag_in_flight) return "early_use";
  return "wrong_tag";
}

void write_kernel(void** params, const unsigned*, const unsigned*) {
  const Arguments of = arguments_of(params);
  const int result = running->gpu().fill(static_cast<int>(of.device), of.address, of.bytes,
                                         Tag::make(of.block, of.version).bits);
  if (result != firn_gpu_tags_done) return failed(oracle_of(result, 0), of, "writes", 0, 0);
  running->version_done[of.block] = static_cast<uint32_t>(of.version);
}

void compare_kernel(void** params, const unsigned*, const unsigned*) {
  const Arguments of = arguments_of(params);
  uint64_t at = 0, found = 0;
  const int result = running->gpu().compare(static_cast<int>(of.device), of.address, of.bytes,
                                            Tag::make(of.block, of.version).bits, &at, &found);
  if (result != firn_gpu_tags_done)
    failed(oracle_of(result, found), of, "reads", at, found);
}

template <class T>
void resolve(T& into, void* handle, const char* name) {
  into = reinterpret_cast<T>(::dlsym(handle, name));
  FIRN_CHECK(into, "%s is not exported by the software GPU", name);
}

}  // namespace

Machine::Machine(const Options& options, std::function<bool()> may_wait) : options_(options) {
  running = this;
  open_gpu();
  open_engines(std::move(may_wait));
}

void Machine::open_gpu() {
  const char* library = std::getenv("FIRN_TEST_GPU");
  FIRN_CHECK(library, "FIRN_TEST_GPU must name the software GPU's library");
  Result<std::unique_ptr<Driver>> driver = open_driver(library);
  FIRN_CHECK(driver, "%s", describe(driver.error()).c_str());
  driver_ = std::move(*driver);
  void* handle = driver_->handle;
  resolve(gpu_.configure, handle, "firnGpuConfigure");
  resolve(gpu_.reset, handle, "firnGpuReset");
  resolve(gpu_.now, handle, "firnGpuNow");
  resolve(gpu_.fail_at, handle, "firnGpuFailAt");
  resolve(gpu_.fail_from, handle, "firnGpuFailFrom");
  resolve(gpu_.fail_rate, handle, "firnGpuFailRate");
  resolve(gpu_.die, handle, "firnGpuDie");
  resolve(gpu_.counts, handle, "firnGpuCounts");
  resolve(gpu_.reserved_bytes, handle, "firnGpuReservedBytes");
  resolve(gpu_.fallible_calls, handle, "firnGpuFallibleCalls");
  resolve(gpu_.kernel_create, handle, "firnGpuKernelCreate");
  resolve(gpu_.busy, handle, "firnGpuBusy");
  resolve(gpu_.observe, handle, "firnGpuObserve");
  resolve(gpu_.fill, handle, "firnGpuTagsFill");
  resolve(gpu_.compare, handle, "firnGpuTagsCompare");
  resolve(gpu_.read, handle, "firnGpuTagsRead");
  resolve(gpu_.write, handle, "firnGpuTagsWrite");
  resolve(gpu_.launch, handle, "cuLaunchKernel");
  gpu_.reset();
  FirnGpuConfig config{};
  config.struct_bytes = sizeof config;
  config.devices = options_.devices;
  config.memory_bytes = options_.gpu_bytes;
  config.link_bytes_s = options_.link_bytes_s;
  config.link_latency_ns = options_.link_latency_ns;
  config.call_ns_create = config.call_ns_map = config.call_ns_access = config.call_ns_unmap =
      options_.call_ns;
  config.virtual_clock = config.no_bytes = config.tags = 1;
  FIRN_CHECK(gpu_.configure(&config) == 0, "configure");
  FIRN_CHECK(driver_->init(0) == CUDA_SUCCESS, "cuInit");
  events_.now = gpu_.now;
  gpu_.observe(
      [](void* context, const char* entry, void* stream, uint64_t begin, uint64_t end,
         uint64_t bytes) {
        // (Under the GPU's lock: the clock must not be asked.)
        auto& events = *static_cast<Events*>(context);
        const auto now = std::exchange(events.now, nullptr);
        events.note(entry + 2, reinterpret_cast<uint64_t>(stream), begin ^ bytes << 40, end);
        events.now = now;
      },
      &events_);
  Result<std::unique_ptr<VirtualClock>> clock = open_virtual_clock(*driver_);
  FIRN_CHECK(clock, "%s", describe(clock.error()).c_str());
  clock_ = std::move(*clock);
  events_.stand_in_front(*driver_);
  FIRN_CHECK(gpu_.kernel_create("write", write_kernel, layout, &write_) == 0, "kernel");
  FIRN_CHECK(gpu_.kernel_create("compare", compare_kernel, layout, &compare_) == 0, "kernel");
}

void Machine::open_engines(std::function<bool()> may_wait) {
  asking_clock_ = std::make_unique<AskingClock>(*clock_, std::move(may_wait));
  if (options_.with_store) {
    SimulatedStoreOptions store = options_.store;
    store.clock = clock_.get();
    store.tags = this;
    store_ = open_simulated_store(store);
    clock_->attach(store_.get());
    seen_store_ = std::make_unique<SeenStore>(*store_, *this, events_);
  }
  for (int device = 0; device < options_.devices; ++device) {
    contexts_.emplace_back();
    FIRN_CHECK(driver_->device_primary_ctx_retain(&contexts_.back(), device) == CUDA_SUCCESS,
               "context");
    own_streams_.push_back(counts(device).streams);
  }
  if (options_.before_open) options_.before_open(gpu_);
  const uint64_t own_bytes =  // (As Runtime has it.)
      std::min(8 * options_.engine.piece_bytes, options_.engine.host_bytes);
  host_left_ = (options_.engine.host_bytes - own_bytes) * contexts_.size();
  host_room.extent_bytes = uint64_t{4} << 20;
  for (int device = 0; device < options_.devices; ++device) {
    EngineOptions engine = options_.engine;
    engine.no_wall_clock = true;
    engine.device = device;
    if (options_.host_shared) {
      engine.host_bytes *= contexts_.size();
      engine.host_left = &host_left_;
      engine.host_own = own_bytes;
    }
    if (options_.host_pressed) engine.host_room = &host_room;
    engine.context = contexts_[static_cast<size_t>(device)];
    if (options_.greedy)
      engine.baseline = baselines_.emplace_back(std::make_unique<simulate::Greedy>()).get();
    Result<std::unique_ptr<Engine>> opened =
        Engine::open(engine, *driver_, seen_store_.get(), static_cast<unsigned>(device),
                     *asking_clock_);
    if (!opened) {
      error = describe(opened.error());
      return;
    }
    engines_.push_back(std::move(*opened));
  }
}

Machine::~Machine() {
  synchronize();
  engines_.clear();
  for (auto [device, stream] : streams_) {
    Driver::ContextGuard context(*driver_, contexts_[static_cast<size_t>(device)]);
    (void)driver_->stream_destroy(stream);
  }
  gpu_.reset();
  running = nullptr;
}

CUstream Machine::make_stream(int device) {
  Driver::ContextGuard guard(*driver_, context(device));
  CUstream stream = nullptr;
  if (driver_->stream_create(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) return nullptr;
  streams_.push_back({device, stream});
  return stream;
}

void Machine::destroy_stream(int device, CUstream stream) {
  Driver::ContextGuard guard(*driver_, context(device));
  std::erase(streams_, std::pair{device, stream});
  (void)driver_->stream_destroy(stream);
}

uint64_t Machine::streams_of_others(int device) const {
  uint64_t count = own_streams_[static_cast<size_t>(device)];
  for (const auto& [of, stream] : streams_) count += of == device;
  return count;
}

FirnGpuCounts Machine::counts(int device) const {
  FirnGpuCounts counts{};
  FIRN_CHECK(gpu_.counts(device, &counts) == 0, "counts of device %d", device);
  return counts;
}

void Machine::synchronize() {
  for (CUcontext context : contexts_) {
    Driver::ContextGuard guard(*driver_, context);
    (void)driver_->ctx_synchronize();
  }
}

bool Machine::launch(void* kernel, int device, const void* address, size_t bytes, uint64_t block,
                     uint64_t version, CUstream stream) {
  if (bytes == 0) return true;  // (A small block without a whole tag: the next one's address.)
  Driver::ContextGuard guard(*driver_, context(device));
  uint64_t words[] = {static_cast<uint64_t>(device), reinterpret_cast<uint64_t>(address), bytes,
                      block, version};
  void* params[] = {&words[0], &words[1], &words[2], &words[3], &words[4]};
  return gpu_.launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr) == CUDA_SUCCESS;
}

bool Machine::write(int device, const void* address, size_t bytes, uint64_t block,
                    uint64_t version, CUstream stream) {
  return launch(write_, device, address, bytes, block, version, stream);
}

bool Machine::compare(int device, const void* address, size_t bytes, uint64_t block,
                      uint64_t version, CUstream stream) {
  return launch(compare_, device, address, bytes, block, version, stream);
}

void Machine::read(const std::byte* address, size_t bytes, uint64_t* tags) {
  (void)gpu_.read(reinterpret_cast<uint64_t>(address), bytes, tags);
}

void Machine::write(std::byte* address, size_t bytes, const uint64_t* tags) {
  (void)gpu_.write(reinterpret_cast<uint64_t>(address), bytes, tags);
}

}  // namespace firn::sim
