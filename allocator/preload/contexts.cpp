// Streams that end, contexts that come and go, and access between devices.
//
// Owns how often the program retained each primary context, and which devices may reach which
// contexts' memory. Lock: one.
#include <map>
#include <mutex>
#include <set>

#include "allocator/preload/captures.h"
#include "allocator/preload/engines.h"
#include "allocator/preload/frees.h"
#include "allocator/preload/give_way.h"
#include "allocator/preload/globals.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/inspections.h"
#include "allocator/preload/memory.h"

namespace firn::preload {

namespace {
struct Contexts {
  std::mutex mutex;
  std::map<CUdevice, unsigned> retained;
  std::set<std::pair<CUcontext, CUdevice>> reached;  // memory of a context, by a device
};
Contexts& contexts() {
  static Contexts& all = *new Contexts;
  return all;
}

View* view_of(CUdevice device) {
  Runtime* runtime = runtime_here();
  Engine* engine = runtime ? runtime->opened(device) : nullptr;
  return engine ? &views().of(*engine) : nullptr;
}

void ended(CUresult result) {
  if (result != CUDA_SUCCESS) return;
  kernels().forget();
}

template <class Call>
CUresult made(CUdevice device, Call&& call) {
  contexts_differ();
  return or_give_way("a context", call, nullptr, 0, device);
}

/// The engine keeps the primary context alive: ends everything that the program had in it.
void empty(View& view) {
  inspections().drain();
  release_all(view);
  kernels().forget();
  forget_all_globals();
}
}  // namespace

void open_to_peers(View& view) {
  std::lock_guard lock(contexts().mutex);
  for (const auto& [context, device] : contexts().reached)
    if (context == view.context) (void)view.engine->allow_peer(device);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  if (stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD)
    for (unsigned i = 0, n = views().count(); i < n; ++i) views()[i].engine->stream_ends(stream);
  enqueued_stream_ends(stream);
  const CUresult result = real().cuStreamDestroy_v2(stream);
  if (result == CUDA_SUCCESS) capture_ends_with(stream);
  return result;
}

CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
  return made(device, [&] { return real().cuCtxCreate_v2(context, flags, device); });
}
CUresult cuCtxCreate_v3(CUcontext* context, void* affinity, int count, unsigned flags,
                        CUdevice device) {
  return made(device, [&] {
    return real().cuCtxCreate_v3(context, affinity, count, flags, device);
  });
}
CUresult cuCtxCreate_v4(CUcontext* context, void* parameters, unsigned flags, CUdevice device) {
  return made(device, [&] { return real().cuCtxCreate_v4(context, parameters, flags, device); });
}
CUresult cuCtxFromGreenCtx(CUcontext* context, void* green) {
  return made(-1, [&] { return real().cuCtxFromGreenCtx(context, green); });
}

// Its streams end with it, so their work on Firn's memory has to end first. The driver waits, too,
// but only inside the call.
CUresult cuCtxDestroy_v2(CUcontext context) {
  if (views().count() > 0 && context && wait_for_context(context) == CUDA_SUCCESS) {
    inspections().context_ends(context);
    for (unsigned i = 0, n = views().count(); i < n; ++i)
      if (views()[i].context != context) views()[i].engine->context_ends(context);
  }
  const CUresult result = real().cuCtxDestroy_v2(context);
  if (result == CUDA_SUCCESS && context) enqueued_context_ends(context);
  ended(result);
  return result;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  const CUresult result = real().cuCtxEnablePeerAccess(peer, flags);
  CUdevice device = 0;
  if (result != CUDA_SUCCESS || real().cuCtxGetDevice(&device) != CUDA_SUCCESS) return result;
  contexts_differ();
  {
    std::lock_guard lock(contexts().mutex);
    contexts().reached.emplace(peer, device);
  }
  for (unsigned i = 0, n = views().count(); i < n; ++i)
    if (views()[i].context == peer) open_to_peers(views()[i]);
  return result;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const CUresult result = or_give_way(
      "a context", [&] { return real().cuDevicePrimaryCtxRetain(context, device); }, nullptr, 0,
      device);
  if (result == CUDA_SUCCESS) {
    std::lock_guard lock(contexts().mutex);
    ++contexts().retained[device];
  }
  return result;
}

namespace {
template <class Call>
CUresult release_primary(CUdevice device, Call&& call) {
  bool last = false;
  {
    std::lock_guard lock(contexts().mutex);
    unsigned& count = contexts().retained[device];
    // The remaining retain is the engine's own.
    if (count == 0 && view_of(device)) return CUDA_ERROR_INVALID_CONTEXT;
    if (count > 0) last = --count == 0;
  }
  if (last)
    if (View* view = view_of(device)) empty(*view);
  const CUresult result = call();
  ended(result);
  return result;
}

template <class Call>
CUresult reset_primary(CUdevice device, Call&& call) {
  if (View* view = view_of(device)) {
    empty(*view);
    return CUDA_SUCCESS;
  }
  const CUresult result = call();
  ended(result);
  return result;
}
}  // namespace

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return release_primary(device, [&] { return real().cuDevicePrimaryCtxRelease(device); });
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return release_primary(device, [&] { return real().cuDevicePrimaryCtxRelease_v2(device); });
}
CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return reset_primary(device, [&] { return real().cuDevicePrimaryCtxReset(device); });
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return reset_primary(device, [&] { return real().cuDevicePrimaryCtxReset_v2(device); });
}

// The engine's own retain is not the program's.
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  const CUresult result = real().cuDevicePrimaryCtxGetState(device, flags, active);
  if (result != CUDA_SUCCESS || !active || !*active || !view_of(device)) return result;
  std::lock_guard lock(contexts().mutex);
  if (contexts().retained[device] == 0) *active = 0;
  return result;
}

}  // namespace firn::preload
