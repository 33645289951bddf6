// The process's runtime: opens driver, store and engines, writes the statistics at the end. Owns
// driver, store, engines; leaves all of them to the operating system at exit, for CUDA calls are
// undefined once exit has begun.
#include "allocator/runtime/runtime.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <system_error>

#include <fmt/format.h>

#include "allocator/base/survives.h"
#include "allocator/memory/driver_time.h"
#include "allocator/memory/host_trial.h"
#include "allocator/record/program_files.h"
#include "allocator/record/recorder.h"
#include "allocator/record/trace.h"
#include "allocator/runtime/host_memory.h"
#include "allocator/runtime/meeting.h"
#include "allocator/runtime/oom_page.h"
#include "allocator/runtime/open_options.h"
#include "allocator/runtime/service.h"
#include "allocator/runtime/stats_json.h"
#include "allocator/runtime/trace_ends.h"
#include "allocator/runtime/viewers.h"
#include "firn/check.h"
#include "firn/output_file.h"
#include "firn/ranked_mutex.h"
#include "firn/said.h"

namespace firn {

namespace {

constexpr std::chrono::milliseconds said_patience{200};  // at exit, for the reader of stderr
class RuntimeImpl final : public Runtime {
 public:
  explicit RuntimeImpl(const Config& config) : config_(config) {}

  Result<void> open(std::unique_ptr<Driver> driver) {
    driver_ = std::make_unique<Driver>(timed(*driver));
    try_host_apart();
    config_.host_bytes = host_.begin(config_.host_bytes);
    if (config_.host_bytes < (16u << 20))
      return invalid(fmt::format("firn_host: {} is less than the minimum of 16MiB",
                                 format_size(config_.host_bytes)));
    // Eight pieces have to fit: copies, writes, reads can overlap.
    uint64_t piece = std::min<uint64_t>(config_.piece_bytes, config_.host_bytes / 8);
    config_.piece_bytes = std::max<uint64_t>(piece / (2u << 20) * (2u << 20), 2u << 20);
    host_.start(8 * config_.piece_bytes);
    if (!config_.dirs.empty()) {
      Result<std::unique_ptr<Store>> store = open_store(store_options(config_, *driver_));
      if (!store) return store.error();
      store_ = std::move(*store);
    }
    // Absolute: the program may change its folder before they, or files beside them, are written.
    for (std::string* file : {&config_.oom_page, &config_.trace_file, &config_.stats_file})
      if (!file->empty()) {
        std::error_code error;
        const auto path = std::filesystem::absolute(expand_pid(*file), error);
        if (!error) *file = path.string();
      }
    if (!config_.trace_file.empty()) {
      Result<std::unique_ptr<TraceWriter>> trace = TraceWriter::create(config_.trace_file);
      if (!trace) return trace.error();
      trace_ = std::move(*trace);
      config_.watch_fraction = 0;  // every operator must be seen
      trace_begin(*trace_, wall_clock().now_ns(), config_);
    }
    return {};
  }

  Result<Engine*> device(int ordinal) override {
    if (Engine* engine = opened(ordinal)) return engine;
    if (ordinal < 0 || ordinal >= devices_most)
      return invalid(fmt::format("device {}: Firn supports devices 0 to {}", ordinal,
                                 devices_most - 1));
    std::lock_guard lock(mutex_);
    if (Engine* engine = opened(ordinal)) return engine;
    Result<std::unique_ptr<Engine>> engine = open_engine(ordinal);
    if (!engine) return engine.error();
    Engine* raw = engine->get();
    if (Result<void> done = service_.start(*raw, ordinal); !done) return done.error();
    (void)engine->release();  // never destroyed: see the head of this file
    engines_[ordinal].store(raw, std::memory_order_release);
    viewers_.open();
    for (const auto& opened : opened_) opened(*raw);
    return raw;
  }

  Engine* opened(int ordinal) const override {
    return ordinal >= 0 && ordinal < devices_most
               ? engines_[ordinal].load(std::memory_order_acquire)
               : nullptr;
  }

  Engine* around(const void* pointer) const override {
    for (const auto& slot : engines_) {
      Engine* engine = slot.load(std::memory_order_acquire);
      if (engine && engine->contains(pointer)) return engine;
    }
    return nullptr;
  }

  record::Recorder* recorder(int ordinal) const override {
    return ordinal >= 0 && ordinal < devices_most
               ? recorders_[ordinal].load(std::memory_order_acquire)
               : nullptr;
  }

  TraceWriter* trace() const override { return trace_.get(); }

  int device_count() const override {
    int count = 0;
    return driver_->init(0) == CUDA_SUCCESS && driver_->device_get_count(&count) == CUDA_SUCCESS
               ? count
               : 0;
  }
  const Config& config() const override { return config_; }
  const Driver& driver() const override { return *driver_; }
  Store* store() const override { return store_.get(); }

  void note_unseen(const std::string& words) override {
    std::lock_guard lock(mutex_);
    if (std::find(unseen_.begin(), unseen_.end(), words) == unseen_.end())
      unseen_.push_back(words);
  }

  void add_section(const std::string& name, std::function<std::string()> json) override {
    std::lock_guard lock(mutex_);
    sections_[name] = std::move(json);
  }

  void on_open(std::function<void(Engine&)> opened) override {
    std::lock_guard lock(mutex_);
    for (const auto& slot : engines_)
      if (Engine* engine = slot.load(std::memory_order_acquire)) opened(*engine);
    opened_.push_back(std::move(opened));
  }

  void on_look(std::function<void()> looked) override {
    viewers_.on_look(std::move(looked));
  }

  void set_launch_covered(bool (*covered)()) override {
    launch_covered_.store(covered, std::memory_order_release);
  }
  bool covers_launches() const override {
    return launch_covered_.load(std::memory_order_acquire) != nullptr;
  }
  bool launch_covered() const override {
    bool (*covered)() = launch_covered_.load(std::memory_order_acquire);
    return covered && covered();
  }
  void set_enqueued(void (*enqueued)(CUstream, ContextOf)) override {
    enqueued_.store(enqueued, std::memory_order_release);
  }
  void enqueued(CUstream stream, ContextOf context) const override {
    if (auto* enqueued = enqueued_.load(std::memory_order_acquire)) enqueued(stream, context);
  }

  void spill_all() override {
    for (const auto& slot : engines_)
      if (Engine* engine = slot.load(std::memory_order_acquire)) engine->spill_all();
  }

  void refused_memory(std::string_view words) override {
    if (config_.oom_page.empty() && !trace_) return;
    (void)survives([&] {
      const std::string path = config_.oom_page.empty()
                                   ? record::program_prefix(config_.trace_file) + ".oom.html"
                                   : config_.oom_page;
      oom_pages_.write(path, words, [this] {
        std::vector<DeviceThen> devices;
        for (const auto& slot : engines_)
          if (Engine* engine = slot.load(std::memory_order_acquire))
            devices.push_back({engine->stats(), engine->blocks()});
        return devices;
      });
    });
  }

  std::string stats_json() const override {
    std::vector<std::string> unseen;
    Sections sections;
    {
      std::lock_guard lock(mutex_);
      unseen = unseen_;
      sections = sections_;
    }
    return firn::stats_json(device_stats(), {host_.given_bytes(), host_.sharers()},
                            store_ ? store_->stats() : StoreStats{}, unseen, sections);
  }

  void stop() override {
    if (!service_.begin_stop()) return;
    viewers_.stop();
    service_.wait_stopped();
    if (!config_.stats_file.empty()) write_stats();
    Said::of_process().write(said_patience);
    if (trace_) trace_end(*trace_, wall_clock().now_ns(), device_stats());
    for (const auto& slot : recorders_)
      if (record::Recorder* recorder = slot.load(std::memory_order_acquire)) recorder->finish();
  }

  /// Bytes were lost, or firn_verify found some wrong: the exit status must show it.
  bool failed() const {
    uint64_t unseen = 0, corrupt = 0, lost = 0;
    for (const auto& slot : engines_)
      if (const Engine* engine = slot.load(std::memory_order_acquire)) {
        const Failures failures = engine->failures();
        unseen += failures.unseen_writes;
        corrupt += failures.corrupt;
        lost += failures.lost_blocks;
      }
    const auto tell = [](const char* what, uint64_t count) {
      if (count > 0) say(fmt::format("firn: {}: {}", what, count));
    };
    (void)survives([&] {
      tell("LOST blocks (earlier lines name them)", lost);
      tell("firn_verify: pieces changed in host memory or in transit", corrupt);
      tell("firn_verify: memory ranges written unseen", unseen);
      Said::of_process().write(said_patience);
    });
    return unseen + corrupt + lost > 0;
  }

  /// In the child after fork: touches nothing of the parent's.
  void forget() {
    (void)service_.begin_stop();
    viewers_.abandon();
    for (auto& slot : engines_)
      if (Engine* engine = slot.exchange(nullptr)) engine->abandon();
    if (store_) store_->abandon();
    (void)store_.release();
    (void)trace_.release();
  }

 private:
  std::vector<EngineStats> device_stats() const {
    std::vector<EngineStats> devices;
    for (const auto& slot : engines_)
      if (Engine* engine = slot.load(std::memory_order_acquire)) devices.push_back(engine->stats());
    return devices;
  }

  Result<std::unique_ptr<Engine>> open_engine(int ordinal) {
    const Driver& driver = *driver_;
    CUresult result = driver.init(0);
    if (result != CUDA_SUCCESS) return driver.error("cuInit", result);
    CUdevice device = 0;
    if ((result = driver.device_get(&device, ordinal)) != CUDA_SUCCESS)
      return driver.error("cuDeviceGet", result);
    EngineOptions options = engine_options(config_);
    options.device = ordinal;
    if ((result = driver.device_primary_ctx_retain(&options.context, device)) != CUDA_SUCCESS)
      return driver.error("cuDevicePrimaryCtxRetain", result);
    Driver::ContextGuard context(driver, options.context);
    size_t free_bytes = 0, total_bytes = 0;
    if ((result = driver.mem_get_info(&free_bytes, &total_bytes)) != CUDA_SUCCESS)
      return driver.error("cuMemGetInfo", result);
    if (config_.budget_bytes > total_bytes)
      return invalid(fmt::format("firn_budget: {} exceeds the memory of device {}, {}",
                                 format_size(config_.budget_bytes), ordinal,
                                 format_size(total_bytes)));
    options.budget_bytes =
        config_.budget_bytes ? config_.budget_bytes : default_budget(free_bytes, total_bytes);
    options.host_left = host_.left();
    options.host_room = host_.room();
    // Devices take host memory as they need it, and keep it. A device that came when all is taken
    // could not move anything: so each has eight pieces of its own, the last ones beyond the
    // budget.
    options.host_own = std::min(8 * config_.piece_bytes, config_.host_bytes);
    host_.take(options.host_own);
    options.recorder = open_recorder(ordinal, options.context);
    return Engine::open(options, driver, store_.get(), static_cast<unsigned>(ordinal),
                        wall_clock(), trace_.get());
  }

  /// The first device's files are named by the trace alone; a further one's by its ordinal too.
  /// Never destroyed: an engine has it.
  record::Recorder* open_recorder(int ordinal, CUcontext context) {
    if (!trace_) return nullptr;
    std::string prefix = record::program_prefix(config_.trace_file);
    if (recorded_++ > 0) prefix += fmt::format("-device{}", ordinal);
    recorders_[ordinal] = new record::Recorder(*driver_, context, prefix);
    return recorders_[ordinal];
  }

  void write_stats() {
    const Result<void> done = replace_file(config_.stats_file, stats_json() + '\n');
    if (!done) say("firn: " + done.error().text + " (--stats)");
  }

  Config config_;
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<TraceWriter> trace_;
  std::array<std::atomic<Engine*>, devices_most> engines_{};
  std::array<std::atomic<record::Recorder*>, devices_most> recorders_{};
  int recorded_ = 0;  // devices with one
  HostMemory host_;
  Service service_{host_, engines_};
  mutable RankedMutex<Rank::runtime> mutex_;
  OomPages oom_pages_;
  std::vector<std::string> unseen_;
  Sections sections_;
  std::vector<std::function<void(Engine&)>> opened_;
  Viewers viewers_{*this};
  std::atomic<bool (*)()> launch_covered_{nullptr};
  std::atomic<void (*)(CUstream, ContextOf)> enqueued_{nullptr};
};

std::atomic<RuntimeImpl*> own_runtime{nullptr};
std::atomic<Runtime*> the_runtime{nullptr};  // own_runtime, or another front end's
RankedMutex<Rank::start> start_mutex;

/// A program that fails by itself keeps its own status.
void stop_at_exit(int status, void*) {
  RuntimeImpl* runtime = own_runtime.load();
  if (!runtime) return;
  runtime->stop();
  if (!runtime->failed() || status != EXIT_SUCCESS) return;
  (void)std::fflush(nullptr);
  ::_exit(EXIT_FAILURE);
}
void forget_in_child() {
  the_runtime.store(nullptr);
  if (RuntimeImpl* runtime = own_runtime.exchange(nullptr)) runtime->forget();
}

Result<Runtime*> used_again(Runtime* runtime, const Config& config) {
  if (runtime->config().budget_bytes == config.budget_bytes &&
      runtime->config().dirs == config.dirs)
    return runtime;
  return invalid("Firn already runs in this process with other settings");
}

Result<void> register_ends() {
  static bool registered = false;
  if (!registered && (::on_exit(stop_at_exit, nullptr) != 0 ||
                      pthread_atfork(nullptr, nullptr, forget_in_child) != 0))
    return make_error(Code::host_out_of_memory, 0,
                      "the C library refused on_exit or pthread_atfork");
  registered = true;
  return {};
}

}  // namespace

Result<Runtime*> Runtime::start(const Config& config) {
  if (Runtime* runtime = the_runtime.load()) return used_again(runtime, config);
  // Before taking our lock: this waits for the loader's lock, which a thread that waits for ours
  // may hold (in a library's constructor).
  Result<std::unique_ptr<Driver>> driver = open_driver(config.driver);
  if (!driver) return driver.error();
  std::lock_guard lock(start_mutex);
  if (Runtime* runtime = the_runtime.load()) return used_again(runtime, config);
  Runtime* in_charge = met_runtime(**driver);
  if (in_charge) {
    if (Result<Runtime*> other = used_again(in_charge, config); !other) return other;
  } else {
    auto runtime = std::make_unique<RuntimeImpl>(config);
    if (Result<void> opened = runtime->open(std::move(*driver)); !opened) return opened.error();
    in_charge = offer_runtime(runtime->driver(), runtime.get());
    if (in_charge == runtime.get()) own_runtime.store(runtime.release());
  }
  if (Result<void> done = register_ends(); !done) return done.error();
  the_runtime.store(in_charge);
  return in_charge;
}

Runtime* Runtime::get() { return the_runtime.load(std::memory_order_acquire); }

}  // namespace firn
