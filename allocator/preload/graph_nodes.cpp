// Graphs that are built or changed node by node: a node's uses belong to its graph's set. A node
// whose graph is unknown (made by a capture) keeps the blocks that it is given on the device.
#include <map>
#include <mutex>

#include "allocator/preload/copies.h"
#include "allocator/preload/graphs.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/memory.h"

namespace firn::preload {

namespace {
struct Nodes {
  std::mutex mutex;
  std::map<CUgraphNode, CUgraph> graph_of;
};
Nodes& nodes() {
  static Nodes& all = *new Nodes;
  return all;
}

Uses uses_of(const CUDA_KERNEL_NODE_PARAMS* node, bool with_kernel) {
  Uses uses;
  if (!node) return uses;
  CUfunction function = node->func;
  if (!function && with_kernel) function = reinterpret_cast<CUfunction>(node->kern);
  if (!function) return uses;
  uses.everything = !for_each_word(*kernels().find(function), node->kernelParams, node->extra,
                                   [&](uint64_t word) { uses.add(word); });
  if (uses.everything)
    note_unseen("kernels whose parameters the driver does not report: all memory was touched");
  return uses;
}
Uses uses_of(const CUDA_KERNEL_NODE_PARAMS* node) { return uses_of(node, false); }

Uses uses_of(const CUDA_MEMCPY3D* node) {
  Copy copy;
  return read_copy(node, copy) ? uses_of(copy) : Uses{};
}

Uses uses_of(const CUDA_MEMSET_NODE_PARAMS* node) {
  Uses uses;
  if (node) uses.add(node->dst);
  return uses;
}

Uses uses_of(const CUDA_BATCH_MEM_OP_NODE_PARAMS* node) {
  if (node) stay_for(node->paramArray, node->count);
  return {};
}

/// The uses of a node of any type. If Firn does not know the type: every word of it.
Uses uses_of(const CUgraphNodeParams* node) {
  Uses uses;
  if (!node) return uses;
  switch (node->type) {
    case node_kernel: return uses_of(&node->kernel, true);
    case node_memcpy: return uses_of(&node->memcpy.copyParams);
    case node_memset: return uses_of(&node->memset);
    case node_batch_mem_op: return uses_of(&node->memOp);
    default:
      for (long long word : node->reserved1) uses.add(static_cast<uint64_t>(word));
      return uses;
  }
}

void stay(const Uses& uses) {
  for (uint64_t word : uses.words)
    if (View* view = views().at(word))
      (void)view->engine->give_address(reinterpret_cast<void*>(word),
                                       "a node of a graph was given its address");
  if (!uses.everything) return;
  for (unsigned i = 0, n = views().count(); i < n; ++i)
    for (const BlockInfo& block : views()[i].engine->blocks())
      if (block.live)
        (void)views()[i].engine->give_address(block.base,
                                              "a node of a graph may have its address");
}

/// Makes the call while what the node uses is on the device: a driver may look at its addresses.
template <class Call>
CUresult beside(const Uses& uses, Call&& call) {
  Work work(where_on(nullptr));
  for (uint64_t word : uses.words) work.see(word);
  if (CUresult result = work.hold(false)) return result;
  return call();
}

template <class Call>
CUresult add(CUgraphNode* node, CUgraph graph, Uses uses, Call&& call) {
  const CUresult result = beside(uses, call);
  if (result != CUDA_SUCCESS) return result;
  note_node(graph, *node, std::move(uses));
  std::lock_guard lock(nodes().mutex);
  nodes().graph_of[*node] = graph;
  return result;
}

template <class Call>
CUresult change(CUgraphNode node, Uses uses, Call&& call) {
  const CUresult result = beside(uses, call);
  if (result != CUDA_SUCCESS) return result;
  CUgraph graph = nullptr;
  {
    std::lock_guard lock(nodes().mutex);
    const auto found = nodes().graph_of.find(node);
    if (found != nodes().graph_of.end()) graph = found->second;
  }
  if (!graph) stay(uses);
  if (graph) note_node(graph, node, std::move(uses));
  return result;
}

template <class Call>
CUresult change_in(CUgraphExec exec, CUgraphNode node, Uses uses, Call&& call) {
  const CUresult result = beside(uses, call);
  if (result == CUDA_SUCCESS) note_node(exec, node, std::move(uses));
  return result;
}

/// Child graphs, conditional bodies and allocations are known once their node is added.
void note_graphs(CUgraph graph, const CUgraphNodeParams& added) {
  if (added.type == node_graph) join_graphs(graph, added.graph);
  if (added.type == node_alloc) passed_on("memory of graphs' own", added.alloc.bytesize);
  for (unsigned i = 0; added.type == node_conditional && i < added.conditional.size; ++i)
    if (added.conditional.phGraph_out) add_body(graph, added.conditional.phGraph_out[i]);
}
}  // namespace

void forget_nodes(CUgraph graph) {
  std::lock_guard lock(nodes().mutex);
  std::erase_if(nodes().graph_of, [&](const auto& known) { return known.second == graph; });
}

CUresult cuGraphDestroyNode(CUgraphNode node) {
  const CUresult result = real().cuGraphDestroyNode(node);
  if (result != CUDA_SUCCESS) return result;
  std::lock_guard lock(nodes().mutex);
  nodes().graph_of.erase(node);
  return result;
}

// Entries of the same shape.
#define ADD_PLAIN(entry, params, ...)                                                          \
  CUresult entry(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,     \
                 const params* is) {                                                           \
    return add(node, graph, uses_of(is __VA_OPT__(,) __VA_ARGS__),                             \
               [&] { return real().entry(node, graph, after, count, is); });                   \
  }
#define ADD_IN_CONTEXT(entry, params)                                                          \
  CUresult entry(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,     \
                 const params* is, CUcontext context) {                                        \
    return add(node, graph, uses_of(is),                                                       \
               [&] { return real().entry(node, graph, after, count, is, context); });          \
  }
#define CHANGE(entry, params, ...)                                                             \
  CUresult entry(CUgraphNode node, const params* is) {                                         \
    return change(node, uses_of(is __VA_OPT__(,) __VA_ARGS__),                                 \
                  [&] { return real().entry(node, is); });                                     \
  }
#define CHANGE_IN(entry, params, ...)                                                          \
  CUresult entry(CUgraphExec exec, CUgraphNode node, const params* is) {                       \
    return change_in(exec, node, uses_of(is __VA_OPT__(,) __VA_ARGS__),                        \
                     [&] { return real().entry(exec, node, is); });                            \
  }
#define CHANGE_IN_CONTEXT(entry, params)                                                       \
  CUresult entry(CUgraphExec exec, CUgraphNode node, const params* is, CUcontext context) {    \
    return change_in(exec, node, uses_of(is),                                                  \
                     [&] { return real().entry(exec, node, is, context); });                   \
  }
ADD_PLAIN(cuGraphAddKernelNode, CUDA_KERNEL_NODE_PARAMS)
ADD_PLAIN(cuGraphAddKernelNode_v2, CUDA_KERNEL_NODE_PARAMS, true)
ADD_PLAIN(cuGraphAddBatchMemOpNode, CUDA_BATCH_MEM_OP_NODE_PARAMS)
ADD_IN_CONTEXT(cuGraphAddMemcpyNode, CUDA_MEMCPY3D)
ADD_IN_CONTEXT(cuGraphAddMemsetNode, CUDA_MEMSET_NODE_PARAMS)
CHANGE(cuGraphKernelNodeSetParams, CUDA_KERNEL_NODE_PARAMS)
CHANGE(cuGraphKernelNodeSetParams_v2, CUDA_KERNEL_NODE_PARAMS, true)
CHANGE(cuGraphMemcpyNodeSetParams, CUDA_MEMCPY3D)
CHANGE(cuGraphMemsetNodeSetParams, CUDA_MEMSET_NODE_PARAMS)
CHANGE(cuGraphBatchMemOpNodeSetParams, CUDA_BATCH_MEM_OP_NODE_PARAMS)
CHANGE_IN(cuGraphExecKernelNodeSetParams, CUDA_KERNEL_NODE_PARAMS)
CHANGE_IN(cuGraphExecKernelNodeSetParams_v2, CUDA_KERNEL_NODE_PARAMS, true)
CHANGE_IN(cuGraphExecBatchMemOpNodeSetParams, CUDA_BATCH_MEM_OP_NODE_PARAMS)
CHANGE_IN_CONTEXT(cuGraphExecMemcpyNodeSetParams, CUDA_MEMCPY3D)
CHANGE_IN_CONTEXT(cuGraphExecMemsetNodeSetParams, CUDA_MEMSET_NODE_PARAMS)

CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                        CUgraphNodeParams* is) {
  const CUresult result = add(node, graph, uses_of(is), [&] {
    return real().cuGraphAddNode(node, graph, after, count, is);
  });
  if (result == CUDA_SUCCESS) note_graphs(graph, *is);
  return result;
}
CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                           const void* edges, size_t count, CUgraphNodeParams* is) {
  const CUresult result = add(node, graph, uses_of(is), [&] {
    return real().cuGraphAddNode_v2(node, graph, after, edges, count, is);
  });
  if (result == CUDA_SUCCESS) note_graphs(graph, *is);
  return result;
}
CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* is) {
  const CUresult result = real().cuGraphAddMemAllocNode(node, graph, after, count, is);
  if (result == CUDA_SUCCESS) passed_on("memory of graphs' own", is->bytesize);
  return result;
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                  size_t count, CUgraph child) {
  const CUresult result = real().cuGraphAddChildGraphNode(node, graph, after, count, child);
  if (result == CUDA_SUCCESS) join_graphs(graph, child);
  return result;
}
CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* is) {
  return change(node, uses_of(is), [&] { return real().cuGraphNodeSetParams(node, is); });
}
CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* is) {
  const CUresult result = change_in(exec, node, uses_of(is), [&] {
    return real().cuGraphExecNodeSetParams(exec, node, is);
  });
  if (result == CUDA_SUCCESS && is->type == node_graph) join_executable(exec, is->graph);
  return result;
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
  const CUresult result = real().cuGraphExecChildGraphNodeSetParams(exec, node, child);
  if (result == CUDA_SUCCESS) join_executable(exec, child);
  return result;
}

CUresult cuGraphClone(CUgraph* clone, CUgraph graph) {
  const CUresult result = real().cuGraphClone(clone, graph);
  if (result == CUDA_SUCCESS) join_graphs(*clone, graph);
  return result;
}

}  // namespace firn::preload
