// Entries about graphs: their nodes, instantiation, launch.
#include "graph.h"

#include <cstdio>

#include "gpu.h"

namespace firn::software {

namespace {
CUresult with_graph(const char* entry, CUgraph handle, const auto& body) {
  return enter(entry, Need::initialised, [&](Gate& gate) -> CUresult {
    auto graph = gpu().graphs.find(entry, handle);
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    return body(gate, graph);
  });
}

// Lists as documented: the count alone when `out` is null; elements that are left over become null.
CUresult list(const GraphNodes& nodes, CUgraphNode* out, size_t* count) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  if (out)
    for (size_t i = 0; i < *count; ++i)
      out[i] = i < nodes.size() ? as_handle<CUgraphNode>(nodes[i]->handle) : nullptr;
  if (!out || nodes.size() < *count) *count = nodes.size();
  return CUDA_SUCCESS;
}

// One internal stream per captured stream, or per node that was added by hand.
class Run {
 public:
  Run(Gate& gate, std::shared_ptr<Stream> stream) : gate_(gate), stream_(std::move(stream)) {}

  /// Begins after the stream's present work; the stream goes on when all have ended.
  std::shared_ptr<Work> all(const GraphNodes& nodes, std::shared_ptr<Work> last) {
    Scheduler& scheduler = gpu().scheduler;
    auto begin = scheduler.enqueue(stream_, Body{.entry = gate_.entry()}, {std::move(last)});
    return scheduler.enqueue(stream_, Body{.entry = gate_.entry()}, list(nodes, {begin}));
  }

 private:
  using Works = std::vector<std::shared_ptr<Work>>;

  const std::shared_ptr<Stream>& lane(const GraphNode& node) {
    auto& lane = lanes_[node.lane];
    if (!lane) {
      lane = std::make_shared<Stream>();
      lane->context = stream_->context;
      lane->device = node.device;
      lane->flags = CU_STREAM_NON_BLOCKING;
      lane->serial = node.lane;
    }
    return lane;
  }
  // Enqueues the nodes; returns the work whose completion completes all of them.
  Works list(const GraphNodes& nodes, const Works& begin) {
    std::map<const GraphNode*, std::shared_ptr<Work>> done;
    std::map<const GraphNode*, std::shared_ptr<Work>> last;  // that no other comes after
    for (const auto& node : nodes) {
      Works after = begin;
      for (const auto& before : node->after) {
        after.push_back(done.at(before.get()));
        last.erase(before.get());
      }
      if (node->child) after = list(node->child->nodes, after);
      auto work = gpu().scheduler.enqueue(lane(*node), node->body, std::move(after));
      if (node->body.record) node->body.record->mark = work;
      done[node.get()] = last[node.get()] = work;
    }
    if (last.empty()) return begin;
    Works ends;
    for (const auto& [node, work] : last) ends.push_back(work);
    return ends;
  }

  Gate& gate_;
  const std::shared_ptr<Stream> stream_;
  std::map<uint64_t, std::shared_ptr<Stream>> lanes_;
};
}  // namespace

FIRN_GPU_API CUresult cuGraphCreate(CUgraph* handle, unsigned flags) {
  return enter("cuGraphCreate", Need::initialised, [&](Gate&) -> CUresult {
    if (!handle || flags) return CUDA_ERROR_INVALID_VALUE;
    auto graph = std::make_shared<Graph>();
    graph->handle = gpu().graphs.add(graph);
    *handle = as_handle<CUgraph>(graph->handle);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuGraphDestroy(CUgraph handle) {
  return with_graph("cuGraphDestroy", handle, [](Gate&, const auto& graph) {
    remove_handles(*graph);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuGraphClone(CUgraph* out, CUgraph handle) {
  return with_graph("cuGraphClone", handle, [&](Gate&, const auto& graph) -> CUresult {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    auto copy = clone_graph(graph->nodes);
    *out = as_handle<CUgraph>(copy->handle);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return with_graph("cuGraphGetNodes", handle, [&](Gate&, const auto& graph) {
    return list(graph->nodes, nodes, count);
  });
}

FIRN_GPU_API CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return with_graph("cuGraphGetRootNodes", handle, [&](Gate&, const auto& graph) {
    GraphNodes roots = graph->nodes;
    std::erase_if(roots, [](const auto& node) { return !node->after.empty(); });
    return list(roots, nodes, count);
  });
}

FIRN_GPU_API CUresult cuGraphNodeGetType(CUgraphNode handle, int* type) {
  return enter("cuGraphNodeGetType", Need::initialised, [&](Gate& gate) -> CUresult {
    auto node = gpu().graph_nodes.find(gate.entry(), handle);
    if (!node || !type) return CUDA_ERROR_INVALID_VALUE;
    *type = node->body.type;
    return CUDA_SUCCESS;
  });
}

namespace {
CUresult dependencies_of(CUgraphNode handle, CUgraphNode* out, size_t* count) {
  return enter("cuGraphNodeGetDependencies", Need::initialised, [&](Gate& gate) -> CUresult {
    auto node = gpu().graph_nodes.find(gate.entry(), handle);
    return node ? list(node->after, out, count) : CUDA_ERROR_INVALID_VALUE;
  });
}
}  // namespace

FIRN_GPU_API CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* out,
                                                 size_t* count) {
  return dependencies_of(node, out, count);
}
FIRN_GPU_API CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* out,
                                                    CUgraphEdgeData* edges, size_t* count) {
  const size_t room = out && count ? *count : 0;
  CUresult result = dependencies_of(node, out, count);
  if (edges)
    for (size_t i = 0; i < room; ++i) edges[i] = CUgraphEdgeData{};
  return result;
}

FIRN_GPU_API CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph handle,
                                          const CUgraphNode* dependencies, size_t count) {
  return with_graph("cuGraphAddEmptyNode", handle, [&](Gate& gate, const auto& graph) -> CUresult {
    if (!out || (count && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
    auto node = std::make_shared<GraphNode>();
    for (size_t i = 0; i < count; ++i) {
      auto before = gpu().graph_nodes.find(gate.entry(), dependencies[i]);
      if (!before || before->graph.lock() != graph) return CUDA_ERROR_INVALID_VALUE;
      node->after.push_back(before);
    }
    node->body.entry = gate.entry();
    node->graph = graph;
    node->handle = gpu().graph_nodes.add(node);
    graph->nodes.push_back(node);
    *out = as_handle<CUgraphNode>(node->handle);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph handle,
                                                  unsigned long long flags) {
  return with_graph("cuGraphInstantiate", handle, [&](Gate& gate, const auto& graph) -> CUresult {
    constexpr unsigned long long upload_and_priority = 1 | 2 | 8;  // nothing to do for any of them
    if (!out || flags & ~upload_and_priority) return CUDA_ERROR_INVALID_VALUE;
    auto exec = std::make_shared<GraphExec>();
    const auto here = current_context(gate.lock());
    const int device = here ? here->device : 0;
    if (CUresult none = exec->own.take(device, gpu().own_needs.graph)) return none;
    exec->nodes = clone(graph->nodes);
    exec->handle = gpu().graph_execs.add(exec);
    *out = as_handle<CUgraphExec>(exec->handle);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuGraphInstantiate_v2(CUgraphExec* out, CUgraph handle, CUgraphNode* error,
                                            char* log, size_t log_bytes) {
  if (error) *error = nullptr;
  if (log && log_bytes) *log = 0;
  return cuGraphInstantiateWithFlags(out, handle, 0);
}

FIRN_GPU_API CUresult cuGraphExecDestroy(CUgraphExec handle) {
  return enter("cuGraphExecDestroy", Need::initialised, [&](Gate& gate) -> CUresult {
    auto exec = gpu().graph_execs.find(gate.entry(), handle);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    exec->own.give_back();
    gpu().graph_execs.remove(exec->handle);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_ENTRY_PTSZ(cuGraphUpload, (CUgraphExec handle, CUstream on), (handle, on)) {
  return enter("cuGraphUpload", Need::initialised, [&](Gate& gate) -> CUresult {
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(gate, on, &stream)) return result;
    return gpu().graph_execs.find(gate.entry(), handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

FIRN_GPU_ENTRY_PTSZ(cuGraphLaunch, (CUgraphExec handle, CUstream on), (handle, on)) {
  return enter("cuGraphLaunch", Need::initialised, [&](Gate& gate) -> CUresult {
    auto exec = gpu().graph_execs.find(gate.entry(), handle);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(gate, on, &stream)) return result;
    if (stream->capture) {
      if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      record(stream, Body{.entry = gate.entry(), .type = node_graph})->child =
          clone_graph(exec->nodes);
    } else {
      exec->last = Run(gate, stream).all(exec->nodes, exec->last);
    }
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned) {
  return with_graph("cuGraphDebugDotPrint", handle, [&](Gate&, const auto& graph) -> CUresult {
    std::FILE* file = path ? std::fopen(path, "we") : nullptr;
    if (!file) return CUDA_ERROR_INVALID_VALUE;
    bool written = std::fputs("digraph firn {\n", file) >= 0;
    for (const auto& node : graph->nodes) {
      written &= std::fprintf(file, "  n%llx [label=\"%s\"];\n",
                              static_cast<unsigned long long>(node->handle),
                              node->body.entry) > 0;
      for (const auto& before : node->after)
        written &= std::fprintf(file, "  n%llx -> n%llx;\n",
                                static_cast<unsigned long long>(before->handle),
                                static_cast<unsigned long long>(node->handle)) > 0;
    }
    written &= std::fputs("}\n", file) >= 0;
    return (std::fclose(file) == 0) & written ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
  });
}

}  // namespace firn::software
