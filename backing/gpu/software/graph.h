// Graphs and capture: work that is recorded, and replayed by cuGraphLaunch. Owns nodes while their
// graph, an executable of it, or a capture under way needs them. Lock: Gpu::mutex.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "gpu.h"
#include "work.h"

namespace firn::software {

struct GraphNode {
  uint64_t handle = 0;
  Body body;
  std::vector<std::shared_ptr<GraphNode>> after;
  uint64_t lane = 0;   // serial of the stream it was captured from
  int device = 0;
  std::weak_ptr<Graph> graph;
  std::shared_ptr<Graph> child;  // whose nodes run in its place; its own
};
using GraphNodes = std::vector<std::shared_ptr<GraphNode>>;

struct Graph {
  uint64_t handle = 0;
  std::vector<std::shared_ptr<GraphNode>> nodes;  // in an order that respects `after`
};

struct GraphExec {
  uint64_t handle = 0;
  std::vector<std::shared_ptr<GraphNode>> nodes;
  Own own;
  std::shared_ptr<Work> last;  // of its latest launch: launches of one executable do not overlap
};

struct Capture {
  uint64_t id = 0;
  int mode = capture_global;
  std::thread::id thread;
  std::shared_ptr<Stream> origin;
  std::vector<std::shared_ptr<Stream>> streams;  // the origin and those that joined
  std::shared_ptr<Graph> graph;
  size_t nodes_before = 0;    // that the graph had when the capture began
  bool into_given = false;    // the graph is the program's
  bool invalidated = false;
  bool ended = false;
};

/// A copy of the nodes, in their order, with the edges among the copies and with their children,
/// and with the handles of the originals.
GraphNodes clone(const GraphNodes& nodes);
/// A graph of copies that have handles of their own, as their children have.
std::shared_ptr<Graph> clone_graph(const GraphNodes& nodes);
/// Forgets the handles of the graph, its nodes and their children.
void remove_handles(const Graph& graph);
/// Are nodes of the same kinds there, in the same order?
bool same_form(const GraphNodes& a, const GraphNodes& b);
/// Gives the nodes the bodies of `from`, which have the same form.
void take_bodies(const GraphNodes& nodes, const GraphNodes& from);
/// The one that was made from the node with that handle, among children, too; null: none.
GraphNode* find_node(const GraphNodes& nodes, CUgraphNode handle);

/// Enqueues, or records where the stream is captured. Counts nothing. `after` may be null.
CUresult submit(Gate& gate, const std::shared_ptr<Stream>& stream, Body body,
                std::shared_ptr<Work>* work = nullptr);

/// Takes the capture from its streams; its graph is left.
void end_capture(const std::shared_ptr<Capture>& capture);

/// Records a node at the end of a captured stream.
std::shared_ptr<GraphNode> record(const std::shared_ptr<Stream>& stream, Body body);

/// CUDA_SUCCESS if the stream is not captured; else the answer to a call that would wait, and the
/// capture is invalidated.
CUresult refuse_captured(const Stream& stream);
/// The same for a call that asks whether the stream is done, or waits for it: the legacy stream
/// depends on others.
CUresult refuse_wait(Gate& gate, const Stream& stream);

std::shared_ptr<Stream> add_stream(Context& context, const std::shared_ptr<Context>& owner,
                                   unsigned flags, int priority);

}  // namespace firn::software
