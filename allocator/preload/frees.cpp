#include "allocator/preload/frees.h"

#include <algorithm>

#include "allocator/blocks/streams.h"
#include "allocator/preload/captures.h"
#include "allocator/preload/engines.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/memory.h"

namespace firn::preload {

/// A stream that was given work.
struct GivenWork {
  std::atomic<CUstream> key{nullptr};  // the handle; or another context, for its default streams
  bool is_default = false;
  CUcontext context = nullptr;         // null: that of the first view
  CUdevice device = -1;                // where the context is no view's; -1: unknown
  std::atomic<bool> marked{false};     // among its view's marked ones, or about to be
  GivenWork* next = nullptr;           // there
};

namespace {
constexpr size_t streams_most = Streams::capacity, buckets = 2 * streams_most;
const CUstream left = reinterpret_cast<CUstream>(~uintptr_t{0});  // tombstone in a bucket

struct Table {
  std::array<GivenWork, buckets> all;
  size_t known = 0;  // under the captures' lock
};
Table& table() {
  static Table& one = *new Table;
  return one;
}

GivenWork* find(CUstream key) {
  for (size_t at = Streams::hash(key), step = 0; step < buckets; ++step, ++at) {
    GivenWork& stream = table().all[at % buckets];
    const CUstream here = stream.key.load(std::memory_order_acquire);
    if (here == key) return &stream;
    if (!here) return nullptr;
  }
  return nullptr;
}

CUdevice device_of(CUcontext context) {
  CUdevice device = -1;
  CUcontext popped = nullptr;
  if (!context || real().cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) return -1;
  if (real().cuCtxGetDevice(&device) != CUDA_SUCCESS) device = -1;
  (void)real().cuCtxPopCurrent_v2(&popped);
  return device;
}

View* view_of(const GivenWork& stream) {
  if (!stream.context) return &views()[0];
  for (unsigned i = 0, n = views().count(); i < n; ++i)
    if (views()[i].context == stream.context) return &views()[i];
  return nullptr;
}

/// Null: no room.
GivenWork* add(CUstream key, bool is_default) {
  const CUcontext context = !is_default                ? context_of(key)
                            : key == CU_STREAM_LEGACY ? nullptr
                                                       : reinterpret_cast<CUcontext>(key);
  const CUdevice device = device_of(context);
  const auto lock = captures_lock();
  if (GivenWork* known = find(key)) return known;
  if (table().known == streams_most) return nullptr;
  for (size_t at = Streams::hash(key), step = 0; step < buckets; ++step, ++at) {
    GivenWork& stream = table().all[at % buckets];
    const CUstream here = stream.key.load(std::memory_order_relaxed);
    if ((here && here != left) || stream.marked.load(std::memory_order_acquire)) continue;
    stream.is_default = is_default;
    stream.context = context;
    stream.device = device;
    stream.key.store(key, std::memory_order_release);
    ++table().known;
    return &stream;
  }
  return nullptr;
}

void forget(GivenWork& stream) {
  stream.key.store(left, std::memory_order_release);
  --table().known;
}

void cannot_tell(View& view) { view.untold.fetch_add(1, std::memory_order_seq_cst); }

void mark(CUstream key, bool is_default) {
  GivenWork* stream = find(key);
  if (!stream) stream = add(key, is_default);
  if (!stream) return enqueued_somewhere();
  View* view = view_of(*stream);
  for (unsigned i = 0, n = views().count(); !view && i < n; ++i)
    if (stream->device < 0 || stream->device == views()[i].device) cannot_tell(views()[i]);
  if (view && !view->fence) return cannot_tell(*view);  // no fence would clear the mark again
  if (!view || stream->marked.exchange(true, std::memory_order_seq_cst)) return;
  GivenWork* first = view->marked.load(std::memory_order_relaxed);
  do stream->next = first;
  while (!view->marked.compare_exchange_weak(first, stream, std::memory_order_seq_cst));
}

/// Has the fence wait for all work of the marked streams. Under the captures' lock, no capture
/// under way. False: for some of it only, which `untold` counts.
bool fence_off(View& view) {
  bool all = true;
  GivenWork* stream = view.marked.exchange(nullptr, std::memory_order_seq_cst);
  while (stream) {
    GivenWork* const next = stream->next;
    const CUstream key = stream->key.load(std::memory_order_acquire);
    const CUstream handle = stream->is_default ? CU_STREAM_LEGACY : key;
    // Before the event: later work must mark the stream anew.
    stream->marked.exchange(false, std::memory_order_seq_cst);
    all = all && key != left &&
          real().cuEventRecord(view.fence_event, handle) == CUDA_SUCCESS &&
          real().cuStreamWaitEvent(view.fence, view.fence_event, 0) == CUDA_SUCCESS;
    ++view.fence_given;
    stream = next;
  }
  if (!all) cannot_tell(view);
  return all;
}

bool frees_wait() {
  static const bool wait = [] {
    Result<Config> config = configuration();
    return config && config->free_waits;
  }();
  return wait;
}

/// Waits: work on unidentified streams so far is over then.
CUresult wait_for_all(View& view) {
  const uint64_t untold = view.untold.load(std::memory_order_seq_cst);
  counters().frees_waited.fetch_add(1, std::memory_order_relaxed);
  const CUresult result = wait_for_context(view.context);
  if (result != CUDA_SUCCESS) return result;
  uint64_t waited = view.waited.load(std::memory_order_relaxed);
  while (waited < untold && !view.waited.compare_exchange_weak(waited, untold)) {
  }
  return result;
}
}  // namespace

void enqueued(CUstream stream) {
  if (views().count() == 0) return;
  const bool is_default = !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  if (is_default) stream = CU_STREAM_LEGACY;
  if (is_default && other_contexts.load(std::memory_order_acquire)) {
    const CUcontext context = current_context();
    if (!context) return;  // nothing was enqueued
    stream = reinterpret_cast<CUstream>(context);
  }
  if (const GivenWork* known = find(stream);
      known && known->marked.load(std::memory_order_seq_cst)) [[likely]]
    return;
  mark(stream, is_default);
}

void enqueued_somewhere() {
  for (unsigned i = 0, n = views().count(); i < n; ++i) cannot_tell(views()[i]);
}

void enqueued_stream_ends(CUstream handle) {
  GivenWork* stream = find(handle);
  if (!stream || stream->is_default) return;
  const auto lock = captures_lock();
  if (stream->key.load(std::memory_order_acquire) != handle) return;
  View* view = view_of(*stream);
  if (view && stream->marked.load(std::memory_order_seq_cst)) {
    if (captures_under_way() || !view->fence)
      cannot_tell(*view);
    else
      (void)fence_off(*view);
  }
  forget(*stream);
}

void enqueued_stream_begins(CUstream handle) {
  GivenWork* stream = find(handle);
  if (!stream) return;
  const auto lock = captures_lock();
  if (stream->key.load(std::memory_order_acquire) == handle) forget(*stream);
}

void enqueued_context_ends(CUcontext context) {
  const auto lock = captures_lock();
  for (GivenWork& stream : table().all)
    if (const CUstream key = stream.key.load(std::memory_order_acquire);
        key && key != left && stream.context == context)
      forget(stream);
}

CUresult before_free(View& view, Behind& behind) {
  behind = {};
  if (frees_wait() || !view.fence || current_context() != view.context) return wait_for_all(view);
  {
    const auto lock = captures_lock();
    // If a capture has just begun, wait_for_all() answers as the driver would.
    if (!captures_under_way() &&
        view.untold.load(std::memory_order_seq_cst) == view.waited.load() && fence_off(view)) {
      const CUresult over = real().cuStreamQuery(view.fence);
      if (over == CUDA_SUCCESS || over == CUDA_ERROR_NOT_READY) {
        if (over == CUDA_ERROR_NOT_READY) behind = {view.fence, view.fence_given};
        return CUDA_SUCCESS;
      }
    }
  }
  return wait_for_all(view);
}

}  // namespace firn::preload
