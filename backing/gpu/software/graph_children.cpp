// Graphs within graphs, and operations on all of a graph's nodes: copies, forms, handles.
#include <map>
#include <utility>

#include "gpu.h"
#include "graph.h"

namespace firn::software {

GraphNodes clone(const GraphNodes& nodes) {
  std::map<const GraphNode*, std::shared_ptr<GraphNode>> twin;
  GraphNodes copies;
  for (const auto& node : nodes) {
    auto copy = std::make_shared<GraphNode>(*node);
    for (auto& before : copy->after) before = twin.at(before.get());
    if (node->child) {
      copy->child = std::make_shared<Graph>();
      copy->child->handle = node->child->handle;
      copy->child->nodes = clone(node->child->nodes);
    }
    twin[node.get()] = copy;
    copies.push_back(copy);
  }
  return copies;
}

namespace {
void give_handles(const std::shared_ptr<Graph>& graph) {
  graph->handle = gpu().graphs.add(graph);
  for (const auto& node : graph->nodes) {
    node->graph = graph;
    node->handle = gpu().graph_nodes.add(node);
    if (node->child) give_handles(node->child);
  }
}
}  // namespace

std::shared_ptr<Graph> clone_graph(const GraphNodes& nodes) {
  auto copy = std::make_shared<Graph>();
  copy->nodes = clone(nodes);
  give_handles(copy);
  return copy;
}

void remove_handles(const Graph& graph) {
  for (const auto& node : graph.nodes) {
    if (node->child) remove_handles(*node->child);
    gpu().graph_nodes.remove(node->handle);
  }
  gpu().graphs.remove(graph.handle);
}

bool same_form(const GraphNodes& a, const GraphNodes& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i]->body.type != b[i]->body.type || a[i]->after.size() != b[i]->after.size())
      return false;
    if (a[i]->child && !same_form(a[i]->child->nodes, b[i]->child->nodes)) return false;
  }
  return true;
}

void take_bodies(const GraphNodes& nodes, const GraphNodes& from) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i]->body = from[i]->body;
    if (nodes[i]->child) take_bodies(nodes[i]->child->nodes, from[i]->child->nodes);
  }
}

GraphNode* find_node(const GraphNodes& nodes, CUgraphNode handle) {
  for (const auto& node : nodes) {
    if (as_handle<CUgraphNode>(node->handle) == handle) return node.get();
    if (GraphNode* within = node->child ? find_node(node->child->nodes, handle) : nullptr)
      return within;
  }
  return nullptr;
}

FIRN_GPU_API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph* child) {
  return enter("cuGraphChildGraphNodeGetGraph", Need::initialised, [&](Gate& gate) -> CUresult {
    auto node = gpu().graph_nodes.find(gate.entry(), handle);
    if (!node || !node->child || !child) return CUDA_ERROR_INVALID_VALUE;
    *child = as_handle<CUgraph>(node->child->handle);
    return CUDA_SUCCESS;
  });
}

}  // namespace firn::software
