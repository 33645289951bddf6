// Graphs that are built or changed node by node: what a node uses belongs to its graph's set. A
// node whose graph is not known (one that a capture made) keeps what it is given on the device.
#include <map>
#include <mutex>

#include "allocator/preload/copies.h"
#include "allocator/preload/graphs.h"
#include "allocator/preload/handlers.h"

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

struct Uses {
  std::vector<uint64_t> words;
  std::vector<GraphCopy> copies;
};

Uses uses_of(const CUDA_KERNEL_NODE_PARAMS* node, bool with_kernel) {
  Uses uses;
  if (!node) return uses;
  CUfunction function = node->func;
  if (!function && with_kernel) function = reinterpret_cast<CUfunction>(node->kern);
  if (!function) return uses;
  if (!for_each_word(*kernels().find(function), node->kernelParams, node->extra,
                     [&](uint64_t word) {
                       if (views().at(word)) uses.words.push_back(word);
                     }))
    note_unseen("kernel nodes of graphs whose parameters the driver does not tell");
  return uses;
}

Uses uses_of(const CUDA_MEMCPY3D* node) {
  Uses uses;
  Copy copy;
  if (!read_copy(node, copy)) return uses;
  uses.words = {copy.to, copy.from};
  for (size_t z = 0; z < copy.slices; ++z)
    for (size_t y = 0; y < copy.rows; ++y)
      uses.copies.push_back({copy.to + z * copy.to_slice + y * copy.to_pitch,
                             copy.from + z * copy.from_slice + y * copy.from_pitch, copy.bytes,
                             copy.source == Copy::Source::host});
  if (copy.to_host || !copy.to || !copy.from) uses.copies.clear();
  return uses;
}

Uses uses_of(const CUDA_MEMSET_NODE_PARAMS* node) {
  Uses uses;
  if (node) uses.words.push_back(node->dst);
  return uses;
}

/// CUgraphNodeParams: a type, then a union as large as this.
Uses uses_of(const void* node) {
  constexpr size_t head_words = 2, words_most = 29;
  constexpr int kernel = 0;
  Uses uses;
  if (!node) return uses;
  const auto* words = static_cast<const uint64_t*>(node);
  if (*static_cast<const int*>(node) == kernel)
    return uses_of(reinterpret_cast<const CUDA_KERNEL_NODE_PARAMS*>(words + head_words), true);
  for (size_t i = head_words; i < head_words + words_most; ++i)
    if (views().at(words[i])) uses.words.push_back(words[i]);
  return uses;
}

void stay(const Uses& uses) {
  for (uint64_t word : uses.words)
    if (View* view = views().at(word))
      (void)view->engine->give_address(reinterpret_cast<void*>(word),
                                       "a node of a graph was given its address");
}

/// Makes the call while what the node uses is on the device: a driver may look at its addresses.
template <class Call>
CUresult beside(const Uses& uses, Call&& call) {
  Work work(where(nullptr));
  for (uint64_t word : uses.words) work.see(word);
  if (CUresult result = work.hold(false)) return result;
  return call();
}

CUresult added(CUresult result, CUgraphNode* node, CUgraph graph, const Uses& uses) {
  if (result != CUDA_SUCCESS || views().count() == 0) return result;
  note_captured(graph, uses.words, uses.copies);
  std::lock_guard lock(nodes().mutex);
  nodes().graph_of[*node] = graph;
  return result;
}

CUresult changed(CUresult result, CUgraphNode node, const Uses& uses) {
  if (result != CUDA_SUCCESS) return result;
  CUgraph graph = nullptr;
  {
    std::lock_guard lock(nodes().mutex);
    const auto found = nodes().graph_of.find(node);
    if (found != nodes().graph_of.end()) graph = found->second;
  }
  if (graph)
    note_captured(graph, uses.words, uses.copies);
  else
    stay(uses);
  return result;
}

CUresult changed_in(CUresult result, CUgraphExec exec, const Uses& uses) {
  if (result == CUDA_SUCCESS && views().count() > 0) note_executable(exec, uses.words);
  return result;
}
}  // namespace

#define ADD(entry, what, uses)                                                                 \
  CUresult entry(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,     \
                 what* parameters) {                                                           \
    const Uses used = uses;                                                                    \
    return added(beside(used, [&] {                                                            \
      return real().entry(node, graph, after, count, parameters);                              \
    }), node, graph, used);                                                                    \
  }
ADD(cuGraphAddKernelNode, const CUDA_KERNEL_NODE_PARAMS, uses_of(parameters, false))
ADD(cuGraphAddKernelNode_v2, const CUDA_KERNEL_NODE_PARAMS, uses_of(parameters, true))
ADD(cuGraphAddNode, void, uses_of(parameters))

CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                           const void* edges, size_t count, void* parameters) {
  const Uses uses = uses_of(parameters);
  return added(beside(uses, [&] {
    return real().cuGraphAddNode_v2(node, graph, after, edges, count, parameters);
  }), node, graph, uses);
}
CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                              size_t count, const CUDA_MEMCPY3D* copy, CUcontext context) {
  const Uses uses = uses_of(copy);
  return added(beside(uses, [&] {
    return real().cuGraphAddMemcpyNode(node, graph, after, count, copy, context);
  }), node, graph, uses);
}
CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                              size_t count, const CUDA_MEMSET_NODE_PARAMS* fill,
                              CUcontext context) {
  const Uses uses = uses_of(fill);
  return added(beside(uses, [&] {
    return real().cuGraphAddMemsetNode(node, graph, after, count, fill, context);
  }), node, graph, uses);
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                  size_t count, CUgraph child) {
  const CUresult result = real().cuGraphAddChildGraphNode(node, graph, after, count, child);
  if (result == CUDA_SUCCESS) join_graphs(graph, child);
  return result;
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return changed(real().cuGraphKernelNodeSetParams(node, parameters), node,
                 uses_of(parameters, false));
}
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node,
                                       const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return changed(real().cuGraphKernelNodeSetParams_v2(node, parameters), node,
                 uses_of(parameters, true));
}
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* copy) {
  const Uses uses = uses_of(copy);
  return changed(beside(uses, [&] { return real().cuGraphMemcpyNodeSetParams(node, copy); }), node,
                 uses);
}
CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* fill) {
  const Uses uses = uses_of(fill);
  return changed(beside(uses, [&] { return real().cuGraphMemsetNodeSetParams(node, fill); }), node,
                 uses);
}
CUresult cuGraphNodeSetParams(CUgraphNode node, void* parameters) {
  return changed(real().cuGraphNodeSetParams(node, parameters), node, uses_of(parameters));
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return changed_in(real().cuGraphExecKernelNodeSetParams(exec, node, parameters), exec,
                    uses_of(parameters, false));
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return changed_in(real().cuGraphExecKernelNodeSetParams_v2(exec, node, parameters), exec,
                    uses_of(parameters, true));
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMCPY3D* copy, CUcontext context) {
  const Uses uses = uses_of(copy);
  return changed_in(beside(uses, [&] {
    return real().cuGraphExecMemcpyNodeSetParams(exec, node, copy, context);
  }), exec, uses);
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS* fill, CUcontext context) {
  const Uses uses = uses_of(fill);
  return changed_in(beside(uses, [&] {
    return real().cuGraphExecMemsetNodeSetParams(exec, node, fill, context);
  }), exec, uses);
}
CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, void* parameters) {
  return changed_in(real().cuGraphExecNodeSetParams(exec, node, parameters), exec,
                    uses_of(parameters));
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
