// Entries about streams: life, waiting, values, host functions.
#include <algorithm>

#include "graph.h"
#include "gpu.h"

namespace firn::software {

namespace {
// Queries answer even where there is no stream of that name to change.
CUresult with_stream(const char* entry, CUstream handle, const auto& body, bool fallible = true) {
  return enter(entry, Need::initialised, [&](Gate& gate) -> CUresult {
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(gate, handle, &stream)) return result;
    if (CUresult dead = gate.uses(stream->context.lock())) return dead;
    return body(gate, stream);
  }, fallible);
}

CUresult create(const char* entry, CUstream* handle, unsigned flags, int priority) {
  return enter(entry, Need::context, [&](Gate& gate) -> CUresult {
    if (!handle || flags & ~unsigned{CU_STREAM_NON_BLOCKING}) return CUDA_ERROR_INVALID_VALUE;
    Own own;
    if (CUresult none = own.take(gate.context()->device, gpu().own_needs.stream)) return none;
    auto stream = add_stream(*gate.context(), gate.context(), flags, priority);
    stream->own = std::move(own);
    *handle = as_handle<CUstream>(stream->handle);
    return CUDA_SUCCESS;
  });
}
}  // namespace

FIRN_GPU_API CUresult cuStreamCreate(CUstream* handle, unsigned flags) {
  return create("cuStreamCreate", handle, flags, 0);
}
FIRN_GPU_API CUresult cuStreamCreateWithPriority(CUstream* handle, unsigned flags, int priority) {
  return create("cuStreamCreateWithPriority", handle, flags, priority);
}

// Work that is queued still runs; the handle is gone.
FIRN_GPU_API CUresult cuStreamDestroy_v2(CUstream handle) {
  return enter("cuStreamDestroy", Need::initialised, [&](Gate& gate) -> CUresult {
    auto stream = handle ? gpu().streams.find(gate.entry(), handle) : nullptr;
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (const auto capture = stream->capture) {
      capture->invalidated = true;
      if (capture->origin == stream) end_capture(capture);
    }
    gpu().streams.remove(stream->handle);
    // Queued work still orders against the legacy stream, so the context keeps the stream until
    // done.
    auto settle = [stream] {
      stream->own.give_back();
      if (auto context = stream->context.lock()) context->streams.erase(stream->serial);
    };
    if (stream->queue.empty())
      settle();
    else
      gpu().scheduler.enqueue(stream, Body{.entry = "cuStreamDestroy", .settle = settle});
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_ENTRY_PTSZ(cuStreamQuery, (CUstream handle), (handle)) {
  return with_stream("cuStreamQuery", handle, [](Gate& gate, const auto& stream) -> CUresult {
    if (CUresult result = refuse_wait(gate, *stream)) return result;
    return !stream->last || stream->last->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

FIRN_GPU_ENTRY_PTSZ(cuStreamSynchronize, (CUstream handle), (handle)) {
  return with_stream("cuStreamSynchronize", handle, [](Gate& gate, const auto& stream) -> CUresult {
    if (CUresult result = refuse_wait(gate, *stream)) return result;
    gpu().scheduler.wait_for(gate.lock(), gate.entry(), stream->last);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_ENTRY_PTSZ(cuStreamGetPriority, (CUstream handle, int* priority), (handle, priority)) {
  return with_stream("cuStreamGetPriority", handle, [&](Gate&, const auto& stream) -> CUresult {
    if (!priority) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream->priority;
    return CUDA_SUCCESS;
  }, false);
}

FIRN_GPU_ENTRY_PTSZ(cuStreamGetFlags, (CUstream handle, unsigned* flags), (handle, flags)) {
  return with_stream("cuStreamGetFlags", handle, [&](Gate&, const auto& stream) -> CUresult {
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = stream->flags;
    return CUDA_SUCCESS;
  }, false);
}

FIRN_GPU_ENTRY_PTSZ(cuStreamGetId, (CUstream handle, unsigned long long* id), (handle, id)) {
  return with_stream("cuStreamGetId", handle, [&](Gate&, const auto& stream) -> CUresult {
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = stream->serial;
    return CUDA_SUCCESS;
  }, false);
}

FIRN_GPU_ENTRY_PTSZ(cuStreamGetCtx, (CUstream handle, CUcontext* out), (handle, out)) {
  return with_stream("cuStreamGetCtx", handle, [&](Gate&, const auto& stream) -> CUresult {
    auto context = stream->context.lock();
    if (!out || !context) return CUDA_ERROR_INVALID_VALUE;
    *out = as_handle<CUcontext>(context->handle);
    return CUDA_SUCCESS;
  }, false);
}

FIRN_GPU_ENTRY_PTSZ(cuStreamGetCtx_v2, (CUstream handle, CUcontext* out, void** green),
                    (handle, out, green)) {
  if (green) *green = nullptr;  // there are no green contexts
  return cuStreamGetCtx(handle, out);
}

FIRN_GPU_ENTRY_PTSZ(cuStreamGetDevice, (CUstream handle, CUdevice* device), (handle, device)) {
  return with_stream("cuStreamGetDevice", handle, [&](Gate&, const auto& stream) -> CUresult {
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = stream->device;
    return CUDA_SUCCESS;
  }, false);
}

namespace {
// Driver calls from inside are refused while it runs.
template <class Function_>
std::function<void()> as_host_function(Function_ function) {
  return [function] {
    thread().in_host_function = true;
    function();
    thread().in_host_function = false;
  };
}
}  // namespace

FIRN_GPU_ENTRY_PTSZ(cuLaunchHostFunc, (CUstream handle, CUhostFn function, void* data),
                    (handle, function, data)) {
  return with_stream("cuLaunchHostFunc", handle, [&](Gate& gate, const auto& stream) -> CUresult {
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    return submit(gate, stream, Body{.entry = gate.entry(), .type = node_host,
                                     .run = as_host_function([=] { function(data); })});
  });
}

FIRN_GPU_ENTRY_PTSZ(cuStreamAddCallback, (CUstream handle, CUstreamCallback callback, void* data,
                                          unsigned flags), (handle, callback, data, flags)) {
  return with_stream("cuStreamAddCallback", handle,
                     [&](Gate& gate, const auto& stream) -> CUresult {
    if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) {
      stream->capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return submit(gate, stream, Body{.entry = gate.entry(), .type = node_host,
                                     .run = as_host_function([=] {
                                       callback(handle, CUDA_SUCCESS, data);
                                     })});
  });
}

}  // namespace firn::software
