#include "allocator/preload/engines.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "allocator/preload/handlers.h"

namespace firn::preload {

namespace {

std::mutex start_mutex;
bool refused = false;  // under start_mutex: tried once, and said why

std::string variable(const char* name) {
  const char* value = ::secure_getenv(name);
  return value ? value : "";
}

/// The words that are meant for Firn, wherever a front end keeps them.
std::string firn_words() {
  std::string words;
  for (const char* name : {"FIRN_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    const std::string firn = split_conf(variable(name)).firn;
    if (!firn.empty()) words.append(words.empty() ? "" : ",").append(firn);
  }
  return words;
}

Runtime* start_runtime() {
  std::lock_guard lock(start_mutex);
  if (Runtime* runtime = Runtime::get()) return runtime;
  if (refused) return nullptr;
  Result<Config> config = parse_config(firn_words());
  Result<Runtime*> runtime = config ? Runtime::start(*config) : Result<Runtime*>(config.error());
  if (runtime) {
    // After the runtime's own, so before it: no handler finds an engine that has stopped.
    (void)std::atexit(step_aside);
    return *runtime;
  }
  refused = true;
  std::fprintf(stderr, "firn: %s: nothing will spill\n", describe(runtime.error()).c_str());
  return nullptr;
}

}  // namespace

Runtime* runtime_here() { return Runtime::get(); }

Engine* engine_here() {
  CUcontext context = nullptr;
  CUdevice device = 0;
  unsigned flags = 0;
  int active = 0;
  if (real().cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context ||
      real().cuCtxGetDevice(&device) != CUDA_SUCCESS)
    return nullptr;
  Runtime* runtime = Runtime::get();
  Engine* engine = runtime ? runtime->opened(device) : nullptr;
  if (!engine) {
    // Opening it retains the primary context, and would make one where there is none.
    if (real().cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active)
      return nullptr;
    if (!runtime) runtime = start_runtime();
    if (!runtime) return nullptr;
    Result<Engine*> opened = runtime->device(device);
    if (!opened) {
      static std::once_flag said;
      std::call_once(said, [&] {
        std::fprintf(stderr, "firn: %s: nothing will spill\n", describe(opened.error()).c_str());
      });
      return nullptr;
    }
    engine = *opened;
  }
  return engine->context() == context ? engine : nullptr;
}

Engine* engine_around(CUdeviceptr address) {
  Runtime* runtime = Runtime::get();
  return runtime ? runtime->around(reinterpret_cast<const void*>(address)) : nullptr;
}

CUresult result_of(const Error& error) {
  switch (error.code) {
    case Code::ok: return CUDA_SUCCESS;
    case Code::driver: return static_cast<CUresult>(error.detail);
    case Code::out_of_memory:
    case Code::host_out_of_memory: return CUDA_ERROR_OUT_OF_MEMORY;
    case Code::invalid_argument: return CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_UNKNOWN;
  }
}

}  // namespace firn::preload
