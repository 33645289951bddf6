#include "allocator/preload/views.h"

#include <mutex>
#include <set>

#include "allocator/preload/coverage.h"
#include "allocator/preload/engines.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/inspections.h"
#include "allocator/preload/modules.h"

namespace firn::preload {

namespace {
std::mutex adding;
}  // namespace

Kernels& kernels() {
  static Kernels& all = [&]() -> Kernels& {
    Result<Config> config = configuration();
    if (config && !config->layouts)
      return *new Kernels({nullptr, nullptr, nullptr, metadata_of});
    return *new Kernels({real().cuFuncGetParamInfo, real().cuKernelGetParamInfo,
                         real().cuFuncGetModule, metadata_of});
  }();
  return all;
}

View& Views::of(Engine& engine) {
  for (unsigned i = 0, n = count(); i < n; ++i)
    if (views_[i].engine == &engine) return views_[i];
  std::lock_guard lock(adding);
  const unsigned index = count_.load(std::memory_order_relaxed);
  for (unsigned i = 0; i < index; ++i)
    if (views_[i].engine == &engine) return views_[i];
  View& view = views_[index % most];
  view.engine = &engine;
  view.arena = {engine.addresses().base, engine.addresses().bytes};
  view.context = engine.context();
  view.device = engine.stats().device;
  tables().add_arena(view.arena);
  CUcontext left = nullptr;
  // Another front end allocates for streams of its own.
  if (serving() && real().cuCtxPushCurrent_v2(view.context) == CUDA_SUCCESS) {
    if (real().cuStreamCreate(&view.plain, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
      view.plain = nullptr;
    if (real().cuStreamCreate(&view.fence, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
        real().cuEventCreate(&view.fence_event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
      view.fence = nullptr;
    (void)real().cuCtxPopCurrent_v2(&left);
  }
  inspections().follow(engine);
  count_.store(index + 1, std::memory_order_release);
  int devices = 0;
  if (real().cuDeviceGetCount(&devices) != CUDA_SUCCESS || devices > 1) contexts_differ();
  open_to_peers(view);
  return view;
}

void Views::refresh() {
  Runtime* runtime = runtime_here();
  for (unsigned i = 0; runtime && i < most; ++i)
    if (Engine* engine = runtime->opened(static_cast<int>(i))) (void)of(*engine);
}

CUcontext current_context() {
  CUcontext context = nullptr;
  return real().cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : nullptr;
}

CUcontext context_of(CUstream stream) {
  CUcontext context = nullptr;
  return real().cuStreamGetCtx && real().cuStreamGetCtx(stream, &context) == CUDA_SUCCESS
             ? context
             : current_context();
}

void note_unseen(const char* words) {
  static std::mutex mutex;
  static std::set<const char*>& said = *new std::set<const char*>;
  {
    std::lock_guard lock(mutex);
    if (!said.insert(words).second) return;
  }
  note_unseen(std::string(words));
}

}  // namespace firn::preload
