// What CUDA graphs use: noted while they are captured or built, brought back when they are
// launched.
//
// Owns a set for each graph and executable: addresses, and what copies within it do to pointer
// tables. Lock: one.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "allocator/preload/copies.h"
#include "firn/cuda_types.h"

namespace firn::preload {

/// Of one node, or of all that a capture put into a graph.
struct Uses {
  std::vector<uint64_t> words;  // addresses in arenas, in any order
  std::vector<Copy> copies;     // which run at each launch: from the host, whose bytes are read
                                // then, or within the device
  bool everything = false;      // of a kernel whose parameters nobody can tell
  bool beside_host = false;     // of a copy from or to what is no block
  size_t tidied = 0;            // words that are there once
  void tidy();
  void add(uint64_t word);
  void add(const Uses& other);
};

struct GraphSet {
  Uses all;                            // of nodes without a name here
  std::map<CUgraphNode, Uses> of_node;
  Uses together() const;
};

/// What a call would have touched. (Nothing of it runs yet, so nothing is brought back.)
void note_captured(CUgraph graph, const Uses& uses);
/// A node has other parameters than it had. Null executable: in its graph.
void note_node(CUgraph graph, CUgraphNode node, Uses uses);
void note_node(CUgraphExec exec, CUgraphNode node, Uses uses);
/// What one graph uses now, another one does from now on.
void join_graphs(CUgraph into, CUgraph from);
void join_executable(CUgraphExec into, CUgraph from);
/// The body of a conditional node: what it uses when its graph is instantiated, the graph does.
void add_body(CUgraph graph, CUgraph body);
/// Which graph's a node is: it ends with it.
void forget_nodes(CUgraph graph);

}  // namespace firn::preload
