#include "allocator/preload/engines.h"

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "allocator/preload/coverage.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/identity.h"
#include "allocator/preload/pytorch.h"
#include "allocator/preload/views.h"
#include "allocator/runtime/meeting.h"
#include "firn/said.h"

namespace firn::preload {

namespace {

std::atomic<bool> refused{false};  // tried, and said why

std::string variable(const char* name) {
  const char* value = ::secure_getenv(name);
  return value ? value : "";
}

// Ours or another front end's. A child of fork never comes here: its calls go to the driver.
std::atomic<Runtime*> in_charge{nullptr};
std::atomic<bool> ours{false};
// While set, a runtime that this thread offers is our own.
thread_local bool starting __attribute__((tls_model("initial-exec"))) = false;

Runtime* start_runtime() {
  if (Runtime* runtime = in_charge.load(std::memory_order_acquire)) return runtime;
  if (refused.load(std::memory_order_acquire)) return nullptr;
  Result<Config> config = configuration();
  starting = true;
  Result<Runtime*> runtime = config ? Runtime::start(*config) : Result<Runtime*>(config.error());
  starting = false;
  static std::atomic<bool> registered{false};
  if (runtime) {
    if (registered.exchange(true)) return *runtime;
    say_what_pytorch_was_told();
    if (config->remake == Config::Remake::on)
      say_now("firn: firn_remake: nothing is made again here: calls of the driver do not show what an "
              "operator reads and makes. With Firn's PyTorch package they do");
    if (config->relay != 0)
      say_now("firn: firn_relay: no model runs layer by layer here: calls of the driver do not show "
              "layers. In PyTorch programs Firn's Python package does so");
    // Registered after the runtime's own, so it runs before: no handler finds a stopped engine.
    (void)std::atexit(step_aside);
    return *runtime;
  }
  if (refused.exchange(true)) return nullptr;
  say_now("firn: " + describe(runtime.error()) + ": nothing will spill");
  return nullptr;
}

}  // namespace

Result<Config> configuration() {
  // An outer `firn run` and the Python package keep them here; torch's own variables hold them too.
  const std::string kept = variable("FIRN_CONF");
  if (!kept.empty()) return parse_config(split_conf(kept).firn);
  std::string words;
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    const std::string firn = split_conf(variable(name)).firn;
    if (!firn.empty()) words.append(words.empty() ? "" : ",").append(firn);
  }
  return parse_config(words);
}

void forget_runtime() { in_charge.store(nullptr); }

Runtime* runtime_here() { return in_charge.load(std::memory_order_acquire); }

Runtime* meet(Runtime* offered, const char* build) {
  if (std::strcmp(build, runtime_build()) != 0) {
    note_unseen("another front end, from another build of Firn, manages its own memory");
    return nullptr;
  }
  Runtime* none = nullptr;
  if (!offered || !in_charge.compare_exchange_strong(none, offered)) return runtime_here();
  ours.store(starting, std::memory_order_release);
  offered->add_section("coverage", coverage_json);
  // Launches must recognise its memory, whichever front end hands it out.
  offered->on_open([](Engine& engine) { (void)views().of(engine); });
  if (distrusted())
    offered->on_open([](Engine& engine) { engine.stop_spilling(true, true); });
  for (const std::string& words : noted_unseen()) offered->note_unseen(words);
  return offered;
}

Engine* engine_here() {
  CUcontext context = nullptr;
  CUdevice device = 0;
  unsigned flags = 0;
  int active = 0;
  if (real().cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context ||
      real().cuCtxGetDevice(&device) != CUDA_SUCCESS)
    return nullptr;
  Runtime* runtime = runtime_here();
  // Another front end hands out Firn's memory.
  if (runtime && !ours.load(std::memory_order_acquire)) return nullptr;
  Engine* engine = runtime ? runtime->opened(device) : nullptr;
  if (!engine) {
    // Opening it retains the primary context, and would make one where there is none.
    if (real().cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active)
      return nullptr;
    if (!runtime) runtime = start_runtime();
    if (!runtime || !ours.load(std::memory_order_acquire)) return nullptr;
    Result<Engine*> opened = runtime->device(device);
    if (!opened) {
      static std::once_flag said;
      std::call_once(said, [&] {
        say_now("firn: " + describe(opened.error()) + ": nothing will spill");
      });
      return nullptr;
    }
    engine = *opened;
  }
  return engine->context() == context ? engine : nullptr;
}

bool serving() { return ours.load(std::memory_order_acquire); }

bool launch_covered() {
  Runtime* runtime = runtime_here();
  return runtime && runtime->launch_covered();
}

Seen seen_as() {
  Runtime* runtime = runtime_here();
  return runtime && runtime->covers_launches() ? Seen::this_time : Seen::always;
}

void note_enqueued(CUstream stream) {
  Runtime* runtime = runtime_here();
  if (!runtime) return;
  if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) stream = nullptr;
  runtime->enqueued(stream, [](CUstream of) { return where_on(of).context; });
}

CUresult result_of(const Error& error) {
  switch (error.code) {
    case Code::ok:
      return CUDA_SUCCESS;
    case Code::driver:
      return static_cast<CUresult>(error.detail);
    case Code::out_of_memory:
    case Code::host_out_of_memory:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case Code::invalid_argument:
      return CUDA_ERROR_INVALID_VALUE;
    default:
      return CUDA_ERROR_UNKNOWN;
  }
}

}  // namespace firn::preload
