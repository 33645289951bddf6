// Entries of stream capture: begin, end, its state, and the refusals meanwhile.
#include <algorithm>

#include "graph.h"
#include "gpu.h"

namespace firn::software {

std::shared_ptr<GraphNode> record(const std::shared_ptr<Stream>& stream, Body body) {
  auto node = std::make_shared<GraphNode>();
  node->body = std::move(body);
  node->after = stream->capture_tail;
  node->lane = stream->serial;
  node->device = stream->device;
  node->graph = stream->capture->graph;
  node->handle = gpu().graph_nodes.add(node);
  stream->capture->graph->nodes.push_back(node);
  stream->capture_tail = {node};
  return node;
}

/// Work on the legacy stream, and waits for it, would have to wait for the blocking streams that
/// are captured: invalidates those captures.
static CUresult refuse_implicit(const Stream& stream) {
  if (!stream.legacy) return CUDA_SUCCESS;
  for (const auto& capture : gpu().captures)
    for (const auto& captured : capture->streams)
      if (captured->blocking() && captured->context.lock() == stream.context.lock()) {
        capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
      }
  return CUDA_SUCCESS;
}

CUresult submit(Gate&, const std::shared_ptr<Stream>& stream, Body body,
                std::shared_ptr<Work>* work) {
  if (stream->capture) {
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    record(stream, std::move(body));
    return CUDA_SUCCESS;
  }
  if (CUresult result = refuse_implicit(*stream)) return result;
  auto queued = gpu().scheduler.enqueue(stream, std::move(body));
  if (work) *work = std::move(queued);
  return CUDA_SUCCESS;
}

void end_capture(const std::shared_ptr<Capture>& capture) {
  for (const auto& captured : capture->streams) {
    captured->capture.reset();
    captured->capture_tail.clear();
  }
  capture->ended = true;
  std::erase(gpu().captures, capture);
}

CUresult refuse_captured(const Stream& stream) {
  if (!stream.capture) return CUDA_SUCCESS;
  stream.capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult refuse_wait(Gate& gate, const Stream& stream) {
  if (CUresult result = refuse_captured(stream)) return result;
  if (CUresult result = refuse_implicit(stream)) return result;
  return stream.legacy ? forbid_in_capture(gate) : CUDA_SUCCESS;
}

CUresult forbid_in_capture(Gate&) {
  CUresult result = CUDA_SUCCESS;
  const int mode = thread().capture_mode;
  for (const auto& capture : gpu().captures) {
    const bool mine = capture->thread == std::this_thread::get_id();
    const bool concerned = (mode == capture_global && capture->mode == capture_global) ||
                           (mode != capture_relaxed && mine && capture->mode != capture_relaxed);
    if (!concerned) continue;
    capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

namespace {
/// `into`: the program's graph that the nodes join, behind those of `after`; null: a new one.
CUresult begin_capture(const char* entry, CUstream handle, int mode, CUgraph into,
                       const CUgraphNode* after, size_t count) {
  return enter(entry, Need::initialised, [&](Gate& gate) -> CUresult {
    if (mode < capture_global || mode > capture_relaxed) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(gate, handle, &stream)) return result;
    auto graph = into ? gpu().graphs.find(gate.entry(), into) : std::make_shared<Graph>();
    GraphNodes tail;
    if (!graph || (count && !after)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      auto node = gpu().graph_nodes.find(gate.entry(), after[i]);
      if (!node || node->graph.lock() != graph) return CUDA_ERROR_INVALID_VALUE;
      tail.push_back(node);
    }
    if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    auto capture = std::make_shared<Capture>();
    capture->id = ++gpu().captures_begun;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->origin = stream;
    capture->streams = {stream};
    capture->graph = graph;
    capture->into_given = into != nullptr;
    capture->nodes_before = graph->nodes.size();
    if (!into) graph->handle = gpu().graphs.add(graph);
    stream->capture = capture;
    stream->capture_tail = std::move(tail);
    gpu().captures.push_back(capture);
    return CUDA_SUCCESS;
  });
}
}  // namespace

FIRN_GPU_ENTRY_PTSZ(cuStreamBeginCapture_v2, (CUstream stream, int mode), (stream, mode)) {
  return begin_capture("cuStreamBeginCapture", stream, mode, nullptr, nullptr, 0);
}
FIRN_GPU_ENTRY_PTSZ(cuStreamBeginCaptureToGraph,
                    (CUstream stream, CUgraph graph, const CUgraphNode* after,
                     const CUgraphEdgeData* edges, size_t count, int mode),
                    (stream, graph, after, edges, count, mode)) {
  if (edges) return CUDA_ERROR_NOT_SUPPORTED;
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  return begin_capture("cuStreamBeginCaptureToGraph", stream, mode, graph, after, count);
}

namespace {
// Every new node must be reached by the origin's last ones, or a stream was left unjoined.
bool joined(const Capture& capture) {
  std::unordered_set<const GraphNode*> reached;
  std::vector<const GraphNode*> todo;
  for (const auto& node : capture.origin->capture_tail) todo.push_back(node.get());
  while (!todo.empty()) {
    const GraphNode* node = todo.back();
    todo.pop_back();
    if (!reached.insert(node).second) continue;
    for (const auto& before : node->after) todo.push_back(before.get());
  }
  const auto first = capture.graph->nodes.begin() + static_cast<ptrdiff_t>(capture.nodes_before);
  return std::all_of(first, capture.graph->nodes.end(),
                     [&](const auto& node) { return reached.contains(node.get()); });
}

// Drops the nodes that a failed capture has made.
void drop_nodes(Capture& capture) {
  if (!capture.into_given) return remove_handles(*capture.graph);
  GraphNodes& nodes = capture.graph->nodes;
  for (; nodes.size() > capture.nodes_before; nodes.pop_back()) {
    if (nodes.back()->child) remove_handles(*nodes.back()->child);
    gpu().graph_nodes.remove(nodes.back()->handle);
  }
}
}  // namespace

FIRN_GPU_ENTRY_PTSZ(cuStreamEndCapture, (CUstream handle, CUgraph* out), (handle, out)) {
  return enter("cuStreamEndCapture", Need::initialised, [&](Gate& gate) -> CUresult {
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(gate, handle, &stream)) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    const std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != capture_relaxed && capture->thread != std::this_thread::get_id())
      return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    const bool whole = joined(*capture);
    end_capture(capture);
    *out = nullptr;
    if (capture->invalidated || !whole) {
      const bool invalidated = std::exchange(capture->invalidated, true);
      drop_nodes(*capture);
      return invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                         : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    *out = as_handle<CUgraph>(capture->graph->handle);
    return CUDA_SUCCESS;
  });
}

namespace {
CUstreamCaptureStatus status_of(const Stream& stream) {
  if (!stream.capture) return CU_STREAM_CAPTURE_STATUS_NONE;
  return stream.capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                     : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

/// Refuses questions about the legacy stream while a blocking stream of its context is captured: it
/// would depend on that. The capture is not harmed.
CUresult refuse_question(const Stream& stream) {
  if (!stream.legacy) return CUDA_SUCCESS;
  for (const auto& capture : gpu().captures)
    for (const auto& captured : capture->streams)
      if (captured->blocking() && captured->context.lock() == stream.context.lock())
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  return CUDA_SUCCESS;
}

CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, uint64_t* id, CUgraph* graph,
                      const CUgraphNode** dependencies, size_t* count) {
  return enter("cuStreamGetCaptureInfo", Need::initialised, [&](Gate& gate) -> CUresult {
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(gate, handle, &stream)) return result;
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult result = refuse_question(*stream)) return result;
    *status = status_of(*stream);
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
    if (id) *id = stream->capture->id;
    if (graph) *graph = as_handle<CUgraph>(stream->capture->graph->handle);
    // Valid until the thread's next driver call on the stream.
    thread_local std::vector<CUgraphNode> nodes;
    nodes.clear();
    for (const auto& node : stream->capture_tail)
      nodes.push_back(as_handle<CUgraphNode>(node->handle));
    if (dependencies) *dependencies = nodes.data();
    if (count) *count = nodes.size();
    return CUDA_SUCCESS;
  }, false);
}
}  // namespace

FIRN_GPU_ENTRY_PTSZ(cuStreamIsCapturing, (CUstream handle, CUstreamCaptureStatus* status),
                    (handle, status)) {
  return enter("cuStreamIsCapturing", Need::initialised, [&](Gate& gate) -> CUresult {
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(gate, handle, &stream)) return result;
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult result = refuse_question(*stream)) return result;
    *status = status_of(*stream);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_ENTRY_PTSZ(cuStreamGetCaptureInfo_v2,
                    (CUstream stream, CUstreamCaptureStatus* status, uint64_t* id, CUgraph* graph,
                     const CUgraphNode** dependencies, size_t* count),
                    (stream, status, id, graph, dependencies, count)) {
  return capture_info(stream, status, id, graph, dependencies, count);
}
FIRN_GPU_ENTRY_PTSZ(cuStreamGetCaptureInfo_v3,
                    (CUstream stream, CUstreamCaptureStatus* status, uint64_t* id, CUgraph* graph,
                     const CUgraphNode** dependencies, const CUgraphEdgeData** edges,
                     size_t* count),
                    (stream, status, id, graph, dependencies, edges, count)) {
  if (edges) *edges = nullptr;  // all edges are plain
  return capture_info(stream, status, id, graph, dependencies, count);
}

namespace {
CUresult update_dependencies(CUstream handle, CUgraphNode* dependencies, size_t count,
                             unsigned flags) {
  return enter("cuStreamUpdateCaptureDependencies", Need::initialised, [&](Gate& gate) -> CUresult {
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(gate, handle, &stream)) return result;
    if (!stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (flags > 1 || (count && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
    std::vector<std::shared_ptr<GraphNode>> nodes;
    for (size_t i = 0; i < count; ++i) {
      auto node = gpu().graph_nodes.find(gate.entry(), dependencies[i]);
      if (!node || node->graph.lock() != stream->capture->graph) return CUDA_ERROR_INVALID_VALUE;
      nodes.push_back(node);
    }
    constexpr unsigned set = 1;
    if (flags == set) stream->capture_tail.clear();
    for (auto& node : nodes)
      if (std::find(stream->capture_tail.begin(), stream->capture_tail.end(), node) ==
          stream->capture_tail.end())
        stream->capture_tail.push_back(node);
    return CUDA_SUCCESS;
  });
}
}  // namespace

FIRN_GPU_ENTRY_PTSZ(cuStreamUpdateCaptureDependencies,
                    (CUstream stream, CUgraphNode* dependencies, size_t count, unsigned flags),
                    (stream, dependencies, count, flags)) {
  return update_dependencies(stream, dependencies, count, flags);
}
FIRN_GPU_ENTRY_PTSZ(cuStreamUpdateCaptureDependencies_v2,
                    (CUstream stream, CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                     size_t count, unsigned flags),
                    (stream, dependencies, edges, count, flags)) {
  if (edges) return CUDA_ERROR_NOT_SUPPORTED;
  return update_dependencies(stream, dependencies, count, flags);
}

FIRN_GPU_API CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  return enter("cuThreadExchangeStreamCaptureMode", Need::nothing, [&](Gate&) -> CUresult {
    if (!mode || *mode < capture_global || *mode > capture_relaxed) return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, thread().capture_mode);
    return CUDA_SUCCESS;
  }, false);
}

}  // namespace firn::software
