#include "allocator/preload/captures.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include "allocator/preload/handlers.h"
#include "allocator/preload/inspections.h"
#include "allocator/preload/memory.h"

namespace firn::preload {

namespace {
struct Capture {
  CUstream stream;
  std::thread::id thread;
  int mode;
};
struct Captures {
  std::mutex mutex;
  std::vector<Capture> under_way;
  std::unordered_set<CUdeviceptr> frees;
};
Captures& captures() {
  static Captures& all = *new Captures;
  return all;
}
std::atomic<int> under_way{0};

/// A thread's own default stream has the same handle in every thread: compares the thread, too.
bool is(const Capture& capture, CUstream stream) {
  return capture.stream == stream && (stream != CU_STREAM_PER_THREAD ||
                                      capture.thread == std::this_thread::get_id());
}

void free_deferred() {
  std::unordered_set<CUdeviceptr> frees;
  {
    std::lock_guard lock(captures().mutex);
    if (captures_under_way()) return;
    frees.swap(captures().frees);
  }
  try {
    for (; !frees.empty(); frees.erase(frees.begin()))
      if (const auto block = block_at(*frees.begin()); block && views().at(*frees.begin()))
        if (wait_for_context(block->view->context) == CUDA_SUCCESS) (void)release_block(*block);
  } catch (...) {  // the next capture's end goes on
    std::lock_guard lock(captures().mutex);
    captures().frees.merge(frees);
    throw;
  }
}

void remove(CUstream stream) {
  {
    std::lock_guard lock(captures().mutex);
    auto& all = captures().under_way;
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const Capture& c) { return is(c, stream); });
    if (found == all.end()) return;
    all.erase(found);
    under_way.fetch_sub(1, std::memory_order_acq_rel);
  }
  free_deferred();
}

/// Memory cannot be inspected during a capture, but must be when it first runs short. If that may
/// happen soon, inspects it now.
void look_early() {
  if (inspections().begun() || captures_under_way()) return;
  for (unsigned i = 0, n = views().count(); i < n; ++i)
    if (views()[i].engine->watching()) return inspections().begin();
}

template <class Call>
CUresult begin_capture(CUstream stream, int mode, Call&& call) {
  look_early();
  // Before the call: work of other threads may go into the capture as soon as it has begun.
  {
    std::lock_guard lock(captures().mutex);
    captures().under_way.push_back({stream, std::this_thread::get_id(), mode});
    under_way.fetch_add(1, std::memory_order_acq_rel);
  }
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    std::lock_guard lock(captures().mutex);
    auto& all = captures().under_way;
    const auto mine = std::find_if(all.rbegin(), all.rend(),
                                   [&](const Capture& c) { return is(c, stream); });
    if (mine != all.rend()) {
      all.erase(std::next(mine).base());
      under_way.fetch_sub(1, std::memory_order_acq_rel);
    }
  }
  return result;
}

/// Removes the capture from the list unless the call has left it under way.
template <class Call>
CUresult end_capture(CUstream stream, Call&& call) {
  const CUresult result = call();
  CUstreamCaptureStatus after = CU_STREAM_CAPTURE_STATUS_NONE;
  if (real().cuStreamIsCapturing(stream, &after) != CUDA_SUCCESS ||
      after == CU_STREAM_CAPTURE_STATUS_NONE)
    remove(stream);
  return result;
}

/// By the rules in the driver's documentation of cuThreadExchangeStreamCaptureMode.
bool forbidden() {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (!real().cuThreadExchangeStreamCaptureMode ||
      real().cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS)
    return false;
  CUstreamCaptureMode relaxed = mode;
  (void)real().cuThreadExchangeStreamCaptureMode(&relaxed);
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  std::lock_guard lock(captures().mutex);
  return std::any_of(
      captures().under_way.begin(), captures().under_way.end(), [&](const Capture& capture) {
        if (capture.thread == std::this_thread::get_id())
          return capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        return mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
               capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
      });
}
}  // namespace

bool captures_under_way() { return under_way.load(std::memory_order_acquire) > 0; }

std::unique_lock<std::mutex> captures_lock() {
  return std::unique_lock<std::mutex>(captures().mutex);
}

CUgraph captured_into(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  uint64_t id = 0;
  CUgraph graph = nullptr;
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (real().cuStreamGetCaptureInfo_v2)
    result = real().cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, nullptr, nullptr);
  else if (real().cuStreamGetCaptureInfo_v3)
    result =
        real().cuStreamGetCaptureInfo_v3(stream, &status, &id, &graph, nullptr, nullptr, nullptr);
  return result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? graph : nullptr;
}

CUresult unsafe_call() {
  if (!captures_under_way() || !forbidden()) return CUDA_SUCCESS;
  // Only the driver can invalidate the capture: makes an allocation that it will refuse.
  CUdeviceptr probe = 0;
  const CUresult result = real().cuMemAlloc_v2(&probe, 1);
  if (result == CUDA_SUCCESS) (void)real().cuMemFree_v2(probe);
  return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

bool free_after_captures(CUdeviceptr address, CUresult& result) {
  if (!captures_under_way()) return false;
  std::lock_guard lock(captures().mutex);
  if (!captures_under_way()) return false;
  result = captures().frees.insert(address).second ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  return true;
}

void capture_ends_with(CUstream stream) {
  if (captures_under_way()) remove(stream);
}

CUresult cuStreamBeginCapture(CUstream stream) {
  return begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL,
                       [&] { return real().cuStreamBeginCapture(stream); });
}
CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  return begin_capture(own(stream), CU_STREAM_CAPTURE_MODE_GLOBAL,
                       [&] { return real().cuStreamBeginCapture_ptsz(stream); });
}
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
  return begin_capture(stream, mode, [&] { return real().cuStreamBeginCapture_v2(stream, mode); });
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) {
  return begin_capture(own(stream), mode,
                       [&] { return real().cuStreamBeginCapture_v2_ptsz(stream, mode); });
}
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* after,
                                     const void* edges, size_t count, int mode) {
  return begin_capture(stream, mode, [&] {
    return real().cuStreamBeginCaptureToGraph(stream, graph, after, edges, count, mode);
  });
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode* after,
                                          const void* edges, size_t count, int mode) {
  return begin_capture(own(stream), mode, [&] {
    return real().cuStreamBeginCaptureToGraph_ptsz(stream, graph, after, edges, count, mode);
  });
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return end_capture(stream, [&] { return real().cuStreamEndCapture(stream, graph); });
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return end_capture(own(stream), [&] { return real().cuStreamEndCapture_ptsz(stream, graph); });
}

}  // namespace firn::preload
