// Entries that build and change graphs node by node.
#include "bodies.h"
#include "graph.h"

namespace firn::software {

namespace {
CUresult body_of(Gate& gate, const CUDA_KERNEL_NODE_PARAMS& is, bool with_kernel, Body* body) {
  CUfunction function = is.func;
  if (!function && with_kernel) function = reinterpret_cast<CUfunction>(is.kern);
  return kernel_body(gate, function, {is.gridDimX, is.gridDimY, is.gridDimZ},
                     {is.blockDimX, is.blockDimY, is.blockDimZ}, is.kernelParams, is.extra, body);
}

CUresult body_of(Gate& gate, const CUDA_MEMCPY3D& is, Body* body) {
  Rows rows;
  Side to_side = Side::any, from_side = Side::any;
  MemoryKind to{}, from{};
  if (CUresult result = read_rows(&is, &rows, &to_side, &from_side)) return result;
  if (!rows.total()) return CUDA_ERROR_INVALID_VALUE;
  return copy_body(rows, to_side, from_side, gate.context()->device, body, &to, &from);
}

CUresult body_of(Gate& gate, const CUDA_MEMSET_NODE_PARAMS& is, Body* body) {
  if (!is.width || !is.height ||
      (is.elementSize != 1 && is.elementSize != 2 && is.elementSize != 4))
    return CUDA_ERROR_INVALID_VALUE;
  return fill_body(is.dst, is.pitch, is.value, is.elementSize, is.width, is.height,
                   gate.context()->device, body);
}

CUresult body_of(Gate&, const CUDA_BATCH_MEM_OP_NODE_PARAMS& is, Body* body) {
  if (is.flags) return CUDA_ERROR_INVALID_VALUE;
  return memory_operations_body(is.paramArray, is.count, body);
}

CUresult body_of(Gate& gate, const CUgraphNodeParams& is, Body* body) {
  switch (is.type) {
    case node_kernel: return body_of(gate, is.kernel, true, body);
    case node_memcpy: return body_of(gate, is.memcpy.copyParams, body);
    case node_memset: return body_of(gate, is.memset, body);
    case node_batch_mem_op: return body_of(gate, is.memOp, body);
    case node_graph:
      body->type = node_graph;
      return is.graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult nodes_of(Gate& gate, const std::shared_ptr<Graph>& graph, const CUgraphNode* handles,
                  size_t count, GraphNodes* nodes) {
  if (count && !handles) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    auto node = gpu().graph_nodes.find(gate.entry(), handles[i]);
    if (!node || node->graph.lock() != graph) return CUDA_ERROR_INVALID_VALUE;
    nodes->push_back(node);
  }
  return CUDA_SUCCESS;
}

/// `make` fills in the node's body.
CUresult add(const char* entry, CUgraphNode* out, CUgraph handle, const CUgraphNode* after,
             size_t count, bool given, const auto& make, CUgraph child = nullptr) {
  return enter(entry, Need::context, [&](Gate& gate) -> CUresult {
    auto of = child ? gpu().graphs.find(entry, child) : nullptr;
    if (child && !of) return CUDA_ERROR_INVALID_VALUE;
    auto graph = gpu().graphs.find(entry, handle);
    if (!graph || !out || !given) return CUDA_ERROR_INVALID_VALUE;
    auto node = std::make_shared<GraphNode>();
    if (CUresult result = nodes_of(gate, graph, after, count, &node->after)) return result;
    node->body.entry = entry;
    if (CUresult result = make(gate, &node->body)) return result;
    if (of) node->child = clone_graph(of->nodes);
    node->device = gate.context()->device;
    node->graph = graph;
    node->handle = gpu().graph_nodes.add(node);
    node->lane = node->handle;  // orders come from edges alone
    graph->nodes.push_back(node);
    *out = as_handle<CUgraphNode>(node->handle);
    return CUDA_SUCCESS;
  });
}

CUresult change(GraphNode* node, Gate& gate, const auto& make) {
  Body body{.entry = gate.entry()};
  if (CUresult result = make(gate, &body)) return result;
  if (body.type != node->body.type) return CUDA_ERROR_INVALID_VALUE;
  node->body = std::move(body);
  return CUDA_SUCCESS;
}

CUresult change_node(const char* entry, CUgraphNode handle, bool given, const auto& make) {
  return enter(entry, Need::context, [&](Gate& gate) -> CUresult {
    auto node = gpu().graph_nodes.find(entry, handle);
    return node && given ? change(node.get(), gate, make) : CUDA_ERROR_INVALID_VALUE;
  });
}

/// The executable's nodes have the handles of those that they were made from.
CUresult change_in(const char* entry, CUgraphExec handle, CUgraphNode of, bool given,
                   const auto& make) {
  return enter(entry, Need::context, [&](Gate& gate) -> CUresult {
    auto exec = gpu().graph_execs.find(entry, handle);
    if (!exec || !given) return CUDA_ERROR_INVALID_VALUE;
    GraphNode* node = find_node(exec->nodes, of);
    return node ? change(node, gate, make) : CUDA_ERROR_INVALID_VALUE;
  });
}
}  // namespace

#define ADD(name, params, ...)                                                                 \
  FIRN_GPU_API CUresult name(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,        \
                             size_t count, const params* is) {                                 \
    return add(#name, out, graph, after, count, is, [&](Gate& gate, Body* body) {              \
      return body_of(gate, *is, __VA_ARGS__ __VA_OPT__(,) body);                               \
    });                                                                                        \
  }
#define CHANGE(name, params, ...)                                                              \
  FIRN_GPU_API CUresult name(CUgraphNode node, const params* is) {                             \
    return change_node(#name, node, is, [&](Gate& gate, Body* body) {                          \
      return body_of(gate, *is, __VA_ARGS__ __VA_OPT__(,) body);                               \
    });                                                                                        \
  }
#define CHANGE_IN(name, params, ...)                                                           \
  FIRN_GPU_API CUresult name(CUgraphExec exec, CUgraphNode node, const params* is) {           \
    return change_in(#name, exec, node, is, [&](Gate& gate, Body* body) {                      \
      return body_of(gate, *is, __VA_ARGS__ __VA_OPT__(,) body);                               \
    });                                                                                        \
  }
#define ADD_IN_CONTEXT(name, params)                                                           \
  FIRN_GPU_API CUresult name(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,        \
                             size_t count, const params* is, CUcontext) {                      \
    return add(#name, out, graph, after, count, is,                                            \
               [&](Gate& gate, Body* body) { return body_of(gate, *is, body); });              \
  }
#define CHANGE_IN_CONTEXT(name, params)                                                        \
  FIRN_GPU_API CUresult name(CUgraphExec exec, CUgraphNode node, const params* is,             \
                             CUcontext) {                                                      \
    return change_in(#name, exec, node, is,                                                    \
                     [&](Gate& gate, Body* body) { return body_of(gate, *is, body); });        \
  }
ADD(cuGraphAddKernelNode, CUDA_KERNEL_NODE_PARAMS, false)
ADD(cuGraphAddKernelNode_v2, CUDA_KERNEL_NODE_PARAMS, true)
ADD(cuGraphAddBatchMemOpNode, CUDA_BATCH_MEM_OP_NODE_PARAMS)
ADD_IN_CONTEXT(cuGraphAddMemcpyNode, CUDA_MEMCPY3D)
ADD_IN_CONTEXT(cuGraphAddMemsetNode, CUDA_MEMSET_NODE_PARAMS)
CHANGE(cuGraphKernelNodeSetParams, CUDA_KERNEL_NODE_PARAMS, false)
CHANGE(cuGraphKernelNodeSetParams_v2, CUDA_KERNEL_NODE_PARAMS, true)
CHANGE(cuGraphBatchMemOpNodeSetParams, CUDA_BATCH_MEM_OP_NODE_PARAMS)
CHANGE(cuGraphMemcpyNodeSetParams, CUDA_MEMCPY3D)
CHANGE(cuGraphMemsetNodeSetParams, CUDA_MEMSET_NODE_PARAMS)
CHANGE_IN(cuGraphExecKernelNodeSetParams, CUDA_KERNEL_NODE_PARAMS, false)
CHANGE_IN(cuGraphExecKernelNodeSetParams_v2, CUDA_KERNEL_NODE_PARAMS, true)
CHANGE_IN(cuGraphExecBatchMemOpNodeSetParams, CUDA_BATCH_MEM_OP_NODE_PARAMS)
CHANGE_IN_CONTEXT(cuGraphExecMemcpyNodeSetParams, CUDA_MEMCPY3D)
CHANGE_IN_CONTEXT(cuGraphExecMemsetNodeSetParams, CUDA_MEMSET_NODE_PARAMS)

FIRN_GPU_API CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec handle, CUgraphNode of,
                                                         CUgraph child) {
  return enter("cuGraphExecChildGraphNodeSetParams", Need::initialised,
               [&](Gate& gate) -> CUresult {
    auto exec = gpu().graph_execs.find(gate.entry(), handle);
    auto graph = gpu().graphs.find(gate.entry(), child);
    GraphNode* node = exec ? find_node(exec->nodes, of) : nullptr;
    if (!graph || !node || !node->child || !same_form(node->child->nodes, graph->nodes))
      return CUDA_ERROR_INVALID_VALUE;
    take_bodies(node->child->nodes, graph->nodes);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuGraphAddNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                                        const CUgraphEdgeData* edges, size_t count,
                                        CUgraphNodeParams* is) {
  if (edges) return CUDA_ERROR_NOT_SUPPORTED;
  return add("cuGraphAddNode", out, graph, after, count, is,
             [&](Gate& gate, Body* body) { return body_of(gate, *is, body); },
             is && is->type == node_graph ? is->graph : nullptr);
}
FIRN_GPU_API CUresult cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph graph,
                                               const CUgraphNode* after, size_t count,
                                               CUgraph child) {
  return add("cuGraphAddChildGraphNode", out, graph, after, count, child, [](Gate&, Body* body) {
    body->type = node_graph;
    return CUDA_SUCCESS;
  }, child);
}
FIRN_GPU_API CUresult cuGraphAddNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                                     size_t count, CUgraphNodeParams* is) {
  return cuGraphAddNode_v2(out, graph, after, nullptr, count, is);
}
FIRN_GPU_API CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* is) {
  return change_node("cuGraphNodeSetParams", node, is,
                     [&](Gate& gate, Body* body) { return body_of(gate, *is, body); });
}
FIRN_GPU_API CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                               CUgraphNodeParams* is) {
  if (is && is->type == node_graph)
    return cuGraphExecChildGraphNodeSetParams(exec, node, is->graph);
  return change_in("cuGraphExecNodeSetParams", exec, node, is,
                   [&](Gate& gate, Body* body) { return body_of(gate, *is, body); });
}

/// Only between graphs whose nodes are of the same kinds in the same order.
FIRN_GPU_API CUresult cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph of,
                                           CUgraphExecUpdateResultInfo* how) {
  return enter("cuGraphExecUpdate", Need::initialised, [&](Gate& gate) -> CUresult {
    constexpr CUresult failure = static_cast<CUresult>(910);  // GRAPH_EXEC_UPDATE_FAILURE
    constexpr int topology_changed = 2;
    auto exec = gpu().graph_execs.find(gate.entry(), handle);
    auto graph = gpu().graphs.find(gate.entry(), of);
    if (!exec || !graph || !how) return CUDA_ERROR_INVALID_VALUE;
    *how = {};
    if (!same_form(exec->nodes, graph->nodes)) {
      how->result = topology_changed;
      return failure;
    }
    take_bodies(exec->nodes, graph->nodes);
    return CUDA_SUCCESS;
  });
}

}  // namespace firn::software
