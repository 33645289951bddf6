// The gate that every entry point passes, and how the process's fork and exit reach the driver.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "call_cost.h"
#include "graph.h"
#include "gpu.h"
#include "sticky.h"

namespace firn::software {

void tell(const std::string& what) {
  const std::string line = "firn software GPU: " + what + "\n";
  (void)!::write(STDERR_FILENO, line.data(), line.size());
}

void die(const char* entry, const std::string& rule) {
  tell(entry + (": " + rule));
  ::signal(SIGABRT, SIG_DFL);  // in a kernel, too, it is the process's end
  std::abort();
}

std::string hex(uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

Gpu& gpu() {
  static Gpu* the_gpu = new Gpu;  // never destroyed: threads outlive main
  return *the_gpu;
}

Thread& thread() {
  // Never destroyed: exit handlers call the driver after the main thread's own destructors.
  thread_local Thread* this_thread = new Thread;
  return *this_thread;
}

Gate::Gate(const char* entry, Need need, bool fallible) : entry_(entry) {
  gpu().entries.fetch_add(1);
  result_ = check(need, fallible);
}

CUresult barred(Need need) {
  const Gpu& g = gpu();
  if (g.forked) return CUDA_ERROR_NOT_INITIALIZED;
  if (g.exiting) return CUDA_ERROR_DEINITIALIZED;
  if (thread().in_host_function) return CUDA_ERROR_NOT_PERMITTED;
  return need != Need::nothing && !g.initialised ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
}

CUresult Gate::check(Need need, bool fallible) {
  Gpu& g = gpu();
  if (CUresult before = barred(Need::nothing)) return before;
  lock_ = Lock(g.mutex);
  if (need != Need::nothing && !g.initialised) return CUDA_ERROR_NOT_INITIALIZED;
  if (fallible) {
    const CUresult injected = g.faults.next(entry_);
    if (CUresult end = g.faults.due()) kill_contexts(end);
    if (injected != CUDA_SUCCESS) return injected;
  }
  if (need == Need::context) {
    context_ = current_context(lock_);
    if (!context_)
      return thread().contexts.empty() || !thread().contexts.back()
                 ? CUDA_ERROR_INVALID_CONTEXT
                 : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  if (need == Need::nothing) return CUDA_SUCCESS;
  used_ = context_ ? context_ : current_context(lock_);
  return answer(CUDA_SUCCESS);
}

CUresult Gate::answer(CUresult result) const {
  return used_ && used_->dead != CUDA_SUCCESS && answers_sticky(entry_) ? used_->dead : result;
}

CUresult Gate::uses(const std::shared_ptr<Context>& context) {
  if (context) used_ = context;
  return answer(CUDA_SUCCESS);
}

std::shared_ptr<Context> current_context(Lock&) {
  const auto& stack = thread().contexts;
  if (stack.empty()) return nullptr;
  auto it = gpu().contexts.live().find(stack.back());
  return it == gpu().contexts.live().end() ? nullptr : it->second;
}

CUresult find_stream(Gate& gate, CUstream handle, std::shared_ptr<Stream>* out) {
  const bool own = handle == CU_STREAM_PER_THREAD || (!handle && thread().per_thread_default);
  if (handle && handle != CU_STREAM_LEGACY && !own) {
    *out = gpu().streams.find(gate.entry(), handle);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  std::shared_ptr<Context> context = gate.context() ? gate.context() : current_context(gate.lock());
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (own) {
    std::shared_ptr<Stream>& mine = thread().own_streams[context->handle];
    if (!mine) mine = add_stream(*context, context, CU_STREAM_DEFAULT, 0);
    *out = mine;
    return CUDA_SUCCESS;
  }
  *out = context->legacy;
  return CUDA_SUCCESS;
}

namespace {
// In the child of a fork nothing of the GPU exists: no thread, no memory (MADV_DONTFORK).
void on_fork_child() {
  gpu().forked = true;
  gpu().entries = 0;
}

// exit() has begun: work that is queued stays queued, threads are left where they are.
void on_exit() { gpu().exiting = true; }
}  // namespace

FIRN_GPU_API CUresult cuInit(unsigned flags) {
  return enter("cuInit", Need::nothing, [&](Gate&) -> CUresult {
    Gpu& g = gpu();
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (g.initialised) return CUDA_SUCCESS;
    static bool hooked = false;
    if (!hooked) {
      hooked = true;
      if (pthread_atfork(nullptr, nullptr, on_fork_child) != 0 || std::atexit(on_exit) != 0)
        return CUDA_ERROR_UNKNOWN;
    }
    std::string wrong = read_environment(g.config, g.faults);
    if (std::string words = read_refusals(g.refusals); !words.empty()) wrong = words;
    if (std::string words = read_call_cost(); !words.empty()) wrong = words;
    if (std::string words = read_own_needs(g.own_needs); !words.empty()) wrong = words;
    if (!wrong.empty()) {
      std::fprintf(stderr, "firn software GPU: %s\n", wrong.c_str());
      return CUDA_ERROR_INVALID_VALUE;
    }
    fill_defaults(g.config);
    g.scheduler.virtual_clock = g.config.virtual_clock == 1;
    for (int i = 0; i < g.config.devices; ++i) {
      auto device = std::make_unique<Device>();
      device->ordinal = i;
      device->memory.capacity = g.config.memory_bytes;
      device->memory.open(i);
      auto pool = std::make_shared<Pool>();
      pool->device = i;
      pool->is_default = true;
      pool->handle = device->default_pool = device->current_pool = g.pools.add(pool);
      g.devices.push_back(std::move(device));
    }
    g.initialised = true;
    return CUDA_SUCCESS;
  }, false);
}

}  // namespace firn::software
