// The memory that CUDA graphs use: noted while they are captured or built, brought back when they
// are launched.
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

/// The uses of one node, or of everything that a capture put into a graph.
struct Uses {
  std::vector<uint64_t> words;  // addresses in arenas, in any order
  std::vector<Copy> copies;     // which run at each launch: from the host, whose bytes are read
                                // then, or within the device
  bool everything = false;      // of a kernel with unknown parameters
  bool beside_host = false;     // of a copy with a side that is not a block
  size_t tidied = 0;            // words that are there once
  void tidy();
  void add(uint64_t word);
  void add(const Uses& other);
};

struct GraphSet {
  Uses all;                            // of nodes without an entry below
  std::map<CUgraphNode, Uses> of_node;
  Uses together() const;
};

/// Adds the uses of a captured call. It does not run yet, so nothing is brought back.
void note_captured(CUgraph graph, const Uses& uses);
/// A node has new parameters, in its graph or in an executable.
void note_node(CUgraph graph, CUgraphNode node, Uses uses);
void note_node(CUgraphExec exec, CUgraphNode node, Uses uses);
/// Adds the present uses of `from` to `into`.
void join_graphs(CUgraph into, CUgraph from);
void join_executable(CUgraphExec into, CUgraph from);
/// Adds a conditional node's body: its uses count for `graph` when that is instantiated.
void add_body(CUgraph graph, CUgraph body);
/// The graph ends: forgets which nodes were its own.
void forget_nodes(CUgraph graph);

}  // namespace firn::preload
