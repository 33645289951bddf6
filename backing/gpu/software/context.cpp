// Entries about contexts: primary and other, the calling thread's stack of them, limits, peers.
#include "graph.h"
#include "gpu.h"

namespace firn::software {

namespace {
constexpr int priority_highest = -5;
}

std::shared_ptr<Stream> add_stream(Context& context, const std::shared_ptr<Context>& owner,
                                   unsigned flags, int priority) {
  auto stream = std::make_shared<Stream>();
  stream->context = owner;
  stream->device = context.device;
  stream->flags = flags;
  stream->priority = std::clamp(priority, priority_highest, 0);
  stream->handle = gpu().streams.add(stream);
  stream->serial = stream->handle;
  context.streams[stream->serial] = stream;
  return stream;
}

std::shared_ptr<Context> make_context(Lock&, int device, bool primary, unsigned flags) {
  auto context = std::make_shared<Context>();
  context->device = device;
  context->primary = primary;
  context->flags = flags;
  context->handle = gpu().contexts.add(context);
  context->legacy = add_stream(*context, context, CU_STREAM_DEFAULT, 0);
  context->legacy->legacy = true;
  return context;
}

void destroy_context(Lock& lock, const char* entry, const std::shared_ptr<Context>& context) {
  const auto streams = context->streams;  // a copy: destroyed ones leave it while this waits
  for (auto& [serial, stream] : streams) gpu().scheduler.wait_for(lock, entry, stream->last);
  for (auto& [serial, stream] : context->streams) stream->own.give_back();
  for (auto& [serial, stream] : context->streams)
    if (gpu().streams.lives(stream->handle)) gpu().streams.remove(stream->handle);
  std::vector<uint64_t> doomed;
  for (const auto& [handle, event] : gpu().events.live())
    if (event->context.lock() == context) doomed.push_back(handle);
  for (uint64_t handle : doomed) gpu().events.remove(handle);
  doomed.clear();
  for (const auto& [base, allocation] : gpu().space.allocations())
    if (allocation.context == context->handle && allocation.on_heap() && !allocation.pool)
      doomed.push_back(base);
  for (uint64_t base : doomed)
    gpu().space.free_linear(gpu().device(context->device).memory, base);
  gpu().contexts.remove(context->handle);
  ++gpu().contexts_gone;
  context->streams.clear();
  context->legacy.reset();
}

namespace {
CUresult with_device(const char* entry, CUdevice device, const auto& body, bool fallible) {
  return enter(entry, Need::initialised, [&](Gate& gate) -> CUresult {
    if (!gpu().has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    return body(gate, gpu().device(device));
  }, fallible);
}

void release_primary(Gate& gate, Device& device) {
  if (!device.primary) return;
  std::shared_ptr<Context> context = std::move(device.primary);
  device.primary.reset();
  device.primary_references = 0;
  destroy_context(gate.lock(), gate.entry(), context);
}
}  // namespace

FIRN_GPU_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice ordinal) {
  return with_device("cuDevicePrimaryCtxRetain", ordinal, [&](Gate& gate, Device& device) {
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    if (!device.primary)
      device.primary = make_context(gate.lock(), ordinal, true, device.primary_flags);
    ++device.primary_references;
    *context = as_handle<CUcontext>(device.primary->handle);
    return CUDA_SUCCESS;
  }, true);
}

FIRN_GPU_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
  return with_device("cuDevicePrimaryCtxRelease", ordinal, [&](Gate& gate, Device& device) {
    if (device.primary_references == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--device.primary_references == 0) release_primary(gate, device);
    return CUDA_SUCCESS;
  }, true);
}

FIRN_GPU_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
  return with_device("cuDevicePrimaryCtxReset", ordinal, [&](Gate& gate, Device& device) {
    const unsigned references = device.primary_references;
    release_primary(gate, device);
    device.primary_references = references;
    if (references) device.primary = make_context(gate.lock(), ordinal, true, device.primary_flags);
    return CUDA_SUCCESS;
  }, true);
}

FIRN_GPU_API CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned* flags, int* active) {
  return with_device("cuDevicePrimaryCtxGetState", ordinal, [&](Gate&, Device& device) {
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    *flags = device.primary_flags;
    *active = device.primary != nullptr;
    return CUDA_SUCCESS;
  }, false);
}

FIRN_GPU_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags) {
  return with_device("cuDevicePrimaryCtxSetFlags", ordinal, [&](Gate&, Device& device) {
    device.primary_flags = flags;
    return CUDA_SUCCESS;
  }, true);
}

FIRN_GPU_API CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice ordinal) {
  return with_device("cuCtxCreate", ordinal, [&](Gate& gate, Device&) {
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    auto made = make_context(gate.lock(), ordinal, false, flags);
    thread().contexts.push_back(made->handle);
    *context = as_handle<CUcontext>(made->handle);
    return CUDA_SUCCESS;
  }, true);
}

FIRN_GPU_API CUresult cuCtxCreate_v4(CUcontext* context, void* parameters, unsigned flags,
                                     CUdevice ordinal) {
  if (parameters) return CUDA_ERROR_NOT_SUPPORTED;  // execution affinity, CiG
  return cuCtxCreate_v2(context, flags, ordinal);
}

FIRN_GPU_API CUresult cuCtxDestroy_v2(CUcontext handle) {
  return enter("cuCtxDestroy", Need::initialised, [&](Gate& gate) -> CUresult {
    auto context = gpu().contexts.find(gate.entry(), handle);
    if (!context || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    auto& stack = thread().contexts;
    if (!stack.empty() && stack.back() == context->handle) stack.pop_back();
    destroy_context(gate.lock(), gate.entry(), context);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  return enter("cuCtxPushCurrent", Need::initialised, [&](Gate& gate) -> CUresult {
    auto context = gpu().contexts.find(gate.entry(), handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    thread().contexts.push_back(context->handle);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuCtxPopCurrent_v2(CUcontext* handle) {
  return enter("cuCtxPopCurrent", Need::initialised, [&](Gate&) -> CUresult {
    auto& stack = thread().contexts;
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (handle) *handle = as_handle<CUcontext>(stack.back());
    stack.pop_back();
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuCtxSetCurrent(CUcontext handle) {
  return enter("cuCtxSetCurrent", Need::initialised, [&](Gate& gate) -> CUresult {
    auto& stack = thread().contexts;
    if (!handle) {
      if (!stack.empty()) stack.pop_back();
      return CUDA_SUCCESS;
    }
    auto context = gpu().contexts.find(gate.entry(), handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (stack.empty()) stack.push_back(0);
    stack.back() = context->handle;
    return CUDA_SUCCESS;
  });
}

// The runtime asks these two at each call of its own: they are answered from the thread's own
// memory, without the lock.
FIRN_GPU_API CUresult cuCtxGetCurrent(CUcontext* handle) {
  if (CUresult why = barred(Need::initialised)) return why;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  const auto& stack = thread().contexts;
  *handle = stack.empty() ? nullptr : as_handle<CUcontext>(stack.back());
  return CUDA_SUCCESS;
}

FIRN_GPU_API CUresult cuCtxGetDevice(CUdevice* device) {
  if (CUresult why = barred(Need::initialised)) return why;
  Thread& mine = thread();
  if (device && !mine.contexts.empty() && mine.known.context == mine.contexts.back() &&
      mine.known.context != 0 && mine.known.contexts_gone == gpu().contexts_gone) {
    *device = mine.known.device;
    return CUDA_SUCCESS;
  }
  return enter("cuCtxGetDevice", Need::context, [&](Gate& gate) -> CUresult {
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = gate.context()->device;
    mine.known = {gate.context()->handle, gpu().contexts_gone, *device};
    return CUDA_SUCCESS;
  }, false);
}

FIRN_GPU_API CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  if (!handle) return cuCtxGetDevice(device);
  return enter("cuCtxGetDevice", Need::initialised, [&](Gate& gate) -> CUresult {
    auto context = gpu().contexts.find(gate.entry(), handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
  }, false);
}

FIRN_GPU_API CUresult cuCtxGetFlags(unsigned* flags) {
  return enter("cuCtxGetFlags", Need::context, [&](Gate& gate) -> CUresult {
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = gate.context()->flags;
    return CUDA_SUCCESS;
  }, false);
}

FIRN_GPU_API CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  return enter("cuCtxGetId", Need::initialised, [&](Gate& gate) -> CUresult {
    auto context =
        handle ? gpu().contexts.find(gate.entry(), handle) : current_context(gate.lock());
    if (!context || !id) return context ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    *id = context->handle;
    return CUDA_SUCCESS;
  }, false);
}

FIRN_GPU_API CUresult cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  return enter("cuCtxGetApiVersion", Need::initialised, [&](Gate& gate) -> CUresult {
    if (handle && !gpu().contexts.find(gate.entry(), handle)) return CUDA_ERROR_INVALID_CONTEXT;
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
  }, false);
}

namespace {
CUresult synchronize(Gate& gate, const Context& context) {
  if (CUresult result = forbid_in_capture(gate)) return result;
  // In every mode: a context that is waited for encompasses its streams.
  for (const auto& [serial, stream] : context.streams)
    if (CUresult result = refuse_captured(*stream)) return result;
  std::vector<std::shared_ptr<Work>> before;  // what comes while this waits is not waited for
  for (const auto& [serial, stream] : context.streams)
    if (stream->last) before.push_back(stream->last);
  for (const auto& work : before) gpu().scheduler.wait_for(gate.lock(), gate.entry(), work);
  return CUDA_SUCCESS;
}
}  // namespace

FIRN_GPU_API CUresult cuCtxSynchronize(void) {
  return enter("cuCtxSynchronize", Need::context,
               [](Gate& gate) { return synchronize(gate, *gate.context()); });
}

FIRN_GPU_API CUresult cuCtxSynchronize_v2(CUcontext handle) {
  if (!handle) return cuCtxSynchronize();
  return enter("cuCtxSynchronize", Need::initialised, [&](Gate& gate) -> CUresult {
    auto context = gpu().contexts.find(gate.entry(), handle);
    return context ? synchronize(gate, *context) : CUDA_ERROR_INVALID_CONTEXT;
  });
}

FIRN_GPU_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return enter("cuCtxGetStreamPriorityRange", Need::context, [&](Gate&) -> CUresult {
    if (least) *least = 0;
    if (greatest) *greatest = priority_highest;
    return CUDA_SUCCESS;
  }, false);
}

FIRN_GPU_API CUresult cuCtxGetLimit(size_t* value, int limit) {
  return enter("cuCtxGetLimit", Need::context, [&](Gate& gate) -> CUresult {
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    auto it = gate.context()->limits.find(limit);
    *value = it == gate.context()->limits.end() ? 0 : it->second;
    return CUDA_SUCCESS;
  }, false);
}

FIRN_GPU_API CUresult cuCtxSetLimit(int limit, size_t value) {
  return enter("cuCtxSetLimit", Need::context, [&](Gate& gate) -> CUresult {
    gate.context()->limits[limit] = value;
    return CUDA_SUCCESS;
  }, false);
}

FIRN_GPU_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return enter("cuCtxEnablePeerAccess", Need::context, [&](Gate& gate) -> CUresult {
    auto other = gpu().contexts.find(gate.entry(), peer);
    if (!other) return CUDA_ERROR_INVALID_CONTEXT;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (other->device == gate.context()->device) return CUDA_ERROR_INVALID_DEVICE;
    return gate.context()->peers.insert(other->device).second
               ? CUDA_SUCCESS
               : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  });
}

FIRN_GPU_API CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  return enter("cuCtxDisablePeerAccess", Need::context, [&](Gate& gate) -> CUresult {
    auto other = gpu().contexts.find(gate.entry(), peer);
    if (!other) return CUDA_ERROR_INVALID_CONTEXT;
    return gate.context()->peers.erase(other->device) ? CUDA_SUCCESS
                                                      : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  });
}

}  // namespace firn::software
