#include "pytorch_plugin/firn_allocator.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdlib>
#include <cstring>

#include "firn/said.h"
#include "pytorch_plugin/no_spill.h"
#include "pytorch_plugin/observer.h"
#include "pytorch_plugin/recipes/given.h"
#include "pytorch_plugin/recipes/remaking.h"
#include "pytorch_plugin/stalls.h"
#include "pytorch_plugin/storage_callers.h"
#include "pytorch_plugin/torch_settings.h"
#include "pytorch_plugin/torch_stream.h"
#include "pytorch_plugin/uncached.h"

namespace firn::pytorch {

namespace {

std::atomic<FirnAllocator*> the_allocator{nullptr};
// Once exit has begun CUDA must not be called, and memory is the operating system's to take back.
std::atomic<bool> exiting{false};

constexpr size_t exabyte = size_t{1} << 60;

/// torch.profiler's memory events (profile_memory): `bytes` more at `pointer`, or fewer.
void report_to_profiler(const Engine& engine, c10::DeviceIndex device, void* pointer,
                        int64_t bytes) {
  const PoolTallies tallies = engine.tallies();
  c10::reportMemoryUsageToProfiler(
      pointer, bytes, static_cast<size_t>(tallies.allocated_bytes[0].current),
      static_cast<size_t>(tallies.reserved_bytes[0].current), c10::Device(c10::kCUDA, device));
}

void delete_for_torch(void* pointer) { the_allocator.load()->raw_delete(pointer); }

c10::DeviceIndex current_device() {
  c10::DeviceIndex device = 0;
  // (The check looks for failed assertions of kernels, too, which others do more rarely.)
  if (const cudaError_t found = c10::cuda::GetDevice(&device); found != cudaSuccess) [[unlikely]]
    C10_CUDA_CHECK(found);
  return device;
}

}  // namespace

bool exit_has_begun() { return exiting.load(std::memory_order_relaxed); }

FirnAllocator::FirnAllocator(std::string conf) : conf_(std::move(conf)) {
  for (auto& fraction : fraction_) fraction = 1.0;
  pools_.on_segment([this](const Pools::SegmentEvent& event) {
    if (!log_.noting()) return;
    log_.note_segment({event.made ? AllocationLog::TraceEntry::SEGMENT_ALLOC
                                  : AllocationLog::TraceEntry::SEGMENT_FREE,
                       event.device, event.address, event.bytes, event.stream, event.pool},
                      event.foreign);
  });
}

// --- start ---------------------------------------------------------------------------------------

void FirnAllocator::init(int device_count) {
  if (initialized_) return;
  const ConfWords words = split_conf(conf_);
  TORCH_CHECK(words.rest.empty(), "PYTORCH_CUDA_ALLOC_CONF: ", words.rest,
              " stands beside backend:firn: name one backend");
  Result<Config> config = parse_config(words.firn);
  TORCH_CHECK(config, config.error().text);
  Result<Runtime*> runtime = Runtime::start(*config);
  TORCH_CHECK(runtime, runtime.error().text);
  // Registered after the runtime's own handler, hence called before it.
  static const bool registered = std::atexit([] { exiting = true; }) == 0;
  TORCH_CHECK(registered, "firn: the C library refused atexit");
  if (!(*runtime)->driver().stand_in)
    (*runtime)->note_unseen(
        "kernels that PyTorch's operators do not launch (Triton, extensions, ctypes): the driver "
        "was opened before Firn could stand in front of it");
  // Operators are observed once memory comes near the budget; nothing leaves before.
  (*runtime)->set_launch_covered(
      [] { return !observing() || ThreadScopes::mine().launch_covered(); });
  (*runtime)->set_enqueued(note_enqueued);
  (*runtime)->add_section("stalls", stalls_json);
  (*runtime)->on_look([] { ask_for_call_sites(Asker::viewer, true); });
  check_torch_settings();
  if (!(*runtime)->config().trace_file.empty()) {
    note(noting_operators, true);
    ask_for_call_sites(Asker::trace, true);
  }
  device_count_ = device_count;
  const double fraction = native::CUDAAllocatorConfig::per_process_memory_fraction();
  for (int device = 0; device < device_count; ++device) fraction_[device] = fraction;
  initialized_ = true;
}

bool FirnAllocator::initialized() { return initialized_; }

Engine* FirnAllocator::engine_if_open(c10::DeviceIndex device) const {
  Runtime* runtime = Runtime::get();
  return runtime ? runtime->opened(device) : nullptr;
}

Engine& FirnAllocator::engine(c10::DeviceIndex device) {
  if (Engine* engine = engine_if_open(device)) [[likely]]
    return *engine;
  return open_engine(device);
}

namespace {

/// Hands on a device's engine's reports, to the threads' scopes and the allocation log.
class DeviceObserver final : public EngineObserver {
 public:
  DeviceObserver(Engine& engine, int device, AllocationLog& log)
      : engine_(engine), device_(device), log_(log) {}
  void watching_begins() override { install_observer(false); }
  void happened(const MemoryEvent& event) override { log_.heard(device_, event); }
  const char* waited(const Wait& wait) override {
    return ThreadScopes::mine().stalled(engine_, wait);
  }
  void storm(bool asked) override { look_at_storm(asked); }
  const char* doing() override { return ThreadScopes::mine().doing(); }

 private:
  Engine& engine_;
  const int device_;
  AllocationLog& log_;
};

/// Under adversarial spilling everything is dropped that can be made again, if that is asked for.
Giving giving_of(const Config& config) {
  switch (config.remake) {
    case Config::Remake::off: return Giving::none;
    case Config::Remake::on: return config.adversarial ? Giving::all : Giving::chosen;
    case Config::Remake::automatic: break;
  }
  return config.adversarial ? Giving::none : Giving::chosen;
}

}  // namespace

Engine& FirnAllocator::open_engine(c10::DeviceIndex device) {
  Runtime* runtime = Runtime::get();
  TORCH_CHECK(runtime, "firn: CUDA has not been started in this process");
  TORCH_CHECK(device >= 0 && device < device_count_, "Invalid device argument ",
              static_cast<int>(device), ": did you call init?");
  Result<Engine*> engine = runtime->device(device);
  TORCH_CHECK(engine, engine.error().text);
  {
    std::lock_guard lock(mutex_);
    if (budget_bytes_[device] != 0) return **engine;  // another thread was here
    budget_bytes_[device] = (*engine)->stats().budget_bytes;
    const Config& config = runtime->config();
    // If launches go unseen, so do those of an operator under way when watching begins.
    launches_are_seen_ = runtime->driver().stand_in;
    learn_storage_callers(device);
    if (!give_recipes(giving_of(config)) && config.remake == Config::Remake::on)
      say("firn: firn_remake: nothing is made again here: Firn is not in front of the driver, and "
          "what is enqueued outside of PyTorch's operators goes unseen. firn run puts it there");
    if (config.adversarial || config.watch_fraction == 0) install_observer(config.adversarial);
    engine_observers_.push_back(std::make_unique<DeviceObserver>(**engine, device, log_));
    (*engine)->observe(engine_observers_.back().get());
    follow_no_spill(**engine);
  }
  apply_fraction(**engine, device);
  return **engine;
}

// --- allocation ----------------------------------------------------------------------------------

void* FirnAllocator::take(size_t bytes, c10::DeviceIndex device, cudaStream_t stream, Told told) {
  bool cut_instead = false;
  if (observing()) [[unlikely]] {
    ThreadScopes::mine().throw_trouble();
    cut_instead = ThreadScopes::mine().may_be_cut();
  }
  if (bytes == 0) return nullptr;
  Engine& engine = this->engine(device);
  if (noting.load(std::memory_order_relaxed)) [[unlikely]]
    ThreadScopes::mine().before_allocation();
  const size_t requested = bytes;
  bytes = rounded_by_settings(bytes);
  void* pointer = nullptr;
  const auto refuse = [&](const Error& error) {
    // The operator is then done in parts: no observer hears of the refusal.
    TORCH_CHECK_WITH(OutOfMemoryError, !cut_instead || error.code != Code::out_of_memory,
                     "CUDA out of memory.");
    out_of_memory(engine, bytes, device, error);
  };
  if (pools_.any()) [[unlikely]] {
    Result<void*> pooled = pools_.allocate(engine, device, bytes, stream);
    if (!pooled) refuse(pooled.error());
    pointer = *pooled;
    // (Whether recipes are kept or not: they may be, later, and a graph's replay writes it unseen.)
    if (pointer) Writes::all().give_up(pointer);
  }
  if (!pointer) {
    if (cut_instead || (!observing() && !launches_are_seen_)) told = Told::unknown;
    Result<void*> made = engine.allocate(bytes, stream, requested, told);
    pointer = made ? *made : try_again(engine, bytes, device, stream, told);
    if (!pointer) [[unlikely]]
      refuse(made.error());
  }
  if (observing()) [[unlikely]]
    ThreadScopes::mine().hold_new(engine, device, pointer, stream);
  if (log_.noting()) [[unlikely]]
    log_.note({AllocationLog::TraceEntry::ALLOC, device, pointer, requested, stream,
               pools_.pool_of(pointer)});
  if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace()) [[unlikely]]
    (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
  if (c10::memoryProfilingEnabled()) [[unlikely]]
    report_to_profiler(engine, device, pointer, bytes_of(engine, pointer));
  return pointer;
}

/// The engine had nothing: others may.
void* FirnAllocator::try_again(Engine& engine, size_t bytes, c10::DeviceIndex device,
                               cudaStream_t stream, Told told) {
  if (pools_.any())
    if (void* lent = pools_.borrow(engine, device, bytes, stream)) return lent;
  // Callbacks that empty other caches (torch's registry of them).
  bool freed = false;
  for (const std::string& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
    freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
  if (!freed) return nullptr;
  Result<void*> made = engine.allocate(bytes, stream, bytes, told);
  return made ? *made : nullptr;
}

void FirnAllocator::give_back(void* pointer) {
  if (exiting.load(std::memory_order_relaxed)) return;
  Runtime* runtime = Runtime::get();
  if (!runtime) return;  // the child of a fork: the memory is the parent's
  if (keeping_recipes() || giving_recipes()) [[unlikely]]
    note_freed(pointer);
  if (observing()) [[unlikely]]
    ThreadScopes::mine().forget(pointer);
  if (pools_.any()) [[unlikely]]
    if (std::optional<Pools::Freed> what = pools_.to_free(pointer))
      return give_back_to_pool(pointer, *what);
  Engine* engine = runtime->around(pointer);
  TORCH_CHECK(engine, "invalid device pointer: ", pointer);
  if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace()) [[unlikely]]
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
  if (log_.noting()) [[unlikely]] {
    std::optional<BlockInfo> block = engine->find(pointer);
    if (block && block->base == pointer)
      note_free({AllocationLog::TraceEntry::FREE_REQUESTED, engine->stats().device, pointer,
                 block->requested_bytes, block->stream, {0, 0}},
                block->recorded);
  }
  const bool profiled = c10::memoryProfilingEnabled();
  const int64_t bytes = profiled ? bytes_of(*engine, pointer) : 0;
  Result<void> freed = engine->free(pointer);
  TORCH_CHECK(freed, "invalid device pointer: ", pointer, " (", freed.error().text, ")");
  if (profiled) [[unlikely]]
    report_to_profiler(*engine, static_cast<c10::DeviceIndex>(engine->stats().device), pointer,
                       -bytes);
}

void FirnAllocator::give_back_to_pool(void* pointer, const Pools::Freed& what) {
  if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace())
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
  // A pool's waiting free is entered as completed when it is requested.
  if (log_.noting())
    note_free({AllocationLog::TraceEntry::FREE_REQUESTED, what.device, pointer, what.bytes,
               what.stream, what.pool},
              false);
  const auto device = static_cast<c10::DeviceIndex>(what.device);
  Engine* engine = engine_if_open(device);
  const bool profiled = engine && c10::memoryProfilingEnabled();
  const int64_t bytes = profiled ? bytes_of(*engine, pointer) : 0;
  pools_.free(engine, pointer);
  if (profiled) report_to_profiler(*engine, device, pointer, -bytes);
}

int64_t FirnAllocator::bytes_of(const Engine& engine, const void* pointer) {
  if (pools_.any())
    if (const size_t bytes = pools_.block_bytes(pointer)) return static_cast<int64_t>(bytes);
  const std::optional<BlockInfo> block = engine.find(pointer);
  return block && block->base == pointer ? static_cast<int64_t>(block->bytes) : 0;
}

/// Before the free: afterwards another thread may already have the block.
void FirnAllocator::note_free(const AllocationLog::Event& event, bool waits) {
  AllocationLog::Event completed = event;
  completed.action = AllocationLog::TraceEntry::FREE_COMPLETED;
  if (waits) log_.awaits(completed);
  log_.note(event);
  if (!waits) log_.note(completed);
}

c10::DataPtr FirnAllocator::allocate(size_t bytes) {
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < exabyte,
                   "CUDA out of memory. Tried to allocate more than 1EB memory.");
  const c10::DeviceIndex device = current_device();
  if (uncached() || !isEnabled()) [[unlikely]]
    return allocate_uncached(engine_if_open(device), bytes, device);
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
  void* pointer = nullptr;
  if (bytes > 0) {
    CUstream current = tell_stream(engine(device), stream);
    const bool storage = makes_storage(__builtin_return_address(0));
    pointer = take(bytes, device, current, storage ? Told::always : Told::unknown);
  }
  return {pointer, pointer, delete_for_torch, c10::Device(c10::kCUDA, device)};
}

void* FirnAllocator::raw_alloc(size_t bytes) {
  return raw_alloc_with_stream(bytes, c10::cuda::getCurrentCUDAStream());
}

void* FirnAllocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  const c10::DeviceIndex device = current_device();
  if (uncached() || !isEnabled()) [[unlikely]]
    return allocate_uncached(engine_if_open(device), bytes, device).release_context();
  return take(bytes, device, stream);
}

void FirnAllocator::raw_delete(void* pointer) {
  if (uncached() || (!isEnabled() && !ours(pointer))) [[unlikely]]
    delete_uncached(pointer);
  else if (pointer)
    give_back(pointer);
}

/// Is it of an engine, or of a pool?
bool FirnAllocator::ours(const void* pointer) {
  Runtime* runtime = Runtime::get();
  return (runtime && runtime->around(pointer)) || pools_.segment_around(pointer);
}

c10::DeleterFnPtr FirnAllocator::deleter_of_blocks() { return delete_for_torch; }

c10::DeleterFnPtr FirnAllocator::raw_deleter() const {
  return uncached() || !isEnabled() ? delete_uncached : delete_for_torch;
}

void FirnAllocator::recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) {
  // Not ours: memory from another process, or from another allocator.
  if (!pointer.get() || pointer.get_deleter() != delete_for_torch) return;
  if (pools_.any() && pools_.record_stream(pointer.get(), stream.stream())) return;
  Runtime* runtime = Runtime::get();
  Engine* engine = runtime ? runtime->around(pointer.get()) : nullptr;
  TORCH_CHECK(engine, "No allocated block can be found");
  // The stream may be of any device: its events are recorded in that device's context.
  Result<void> recorded = engine->record_stream(pointer.get(), tell_stream(*engine, stream),
                                                this->engine(stream.device_index()).context());
  TORCH_CHECK(recorded, recorded.error().text);
}

void* FirnAllocator::getBaseAllocation(void* pointer, size_t* bytes) {
  if (auto segment = pools_.segment_around(pointer)) {
    if (bytes) *bytes = segment->second;
    return segment->first;
  }
  Runtime* runtime = Runtime::get();
  Engine* engine = runtime ? runtime->around(pointer) : nullptr;
  std::optional<BlockInfo> block = engine ? engine->find(pointer) : std::nullopt;
  TORCH_CHECK(block, "invalid device pointer: ", pointer);
  if (bytes) *bytes = block->bytes;
  return block->base;
}

/// Torch's copies outside its operators (a copy on write, say): nothing else sees this use.
void FirnAllocator::copy_data(void* to, const void* from, size_t bytes) const {
  Runtime* runtime = Runtime::get();
  std::vector<std::pair<Engine*, Hold>> held;
  struct Release {
    std::vector<std::pair<Engine*, Hold>>& held;
    ~Release() {
      for (auto& [engine, hold] : held) engine->release(hold, nullptr);
    }
  } release{held};
  auto touch = [&](const void* pointer, Access access) {
    Engine* engine = runtime ? runtime->around(pointer) : nullptr;
    if (!engine) return;
    Result<Hold> hold = engine->touch(pointer, nullptr, access);
    if (!hold) runtime->refused(*engine, hold.error());
    TORCH_CHECK(hold, "firn: ", describe(hold.error()));
    if (hold->block) held.push_back({engine, *hold});
  };
  touch(from, Access::read);
  touch(to, Access::write);
  C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
}

cudaError_t FirnAllocator::memcpyAsync(void* to, int to_device, const void* from, int from_device,
                                       size_t bytes, cudaStream_t stream, bool) {
  if (to_device == from_device)
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

/// Kernels of `device` will use memory of `other`.
void FirnAllocator::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex other) {
  c10::cuda::CUDAGuard guard(device);
  const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);  // (to memory not of Firn)
  if (status == cudaErrorPeerAccessAlreadyEnabled)
    (void)cudaGetLastError();  // not an error
  else
    C10_CUDA_CHECK(status);
  Result<void> allowed = engine(other).allow_peer(device);
  TORCH_CHECK(allowed, "firn: ", describe(allowed.error()));
}

// --- installation --------------------------------------------------------------------------------

void install_allocator(const std::string& conf) {
  auto allocator = std::make_shared<FirnAllocator>(conf);
  torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(allocator);
  the_allocator = allocator.get();
  // changeCurrentAllocator does not tell c10's registry, which torch.accelerator asks.
  constexpr uint8_t above_native = 2;
  c10::SetAllocator(c10::kCUDA, allocator.get(), above_native);
  static std::shared_ptr<FirnAllocator>* kept = nullptr;  // tensors may outlive everything
  kept = new std::shared_ptr<FirnAllocator>(std::move(allocator));
  (void)kept;
}

FirnAllocator* installed_allocator() { return the_allocator; }

}  // namespace firn::pytorch
