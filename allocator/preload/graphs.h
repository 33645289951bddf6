// What CUDA graphs use: noted while they are captured or built, brought back when they are
// launched.
//
// Owns a set for each graph and executable: addresses, and what copies within it do to pointer
// tables. Lock: one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "allocator/preload/abi_types.h"
#include "allocator/preload/parameters.h"
#include "allocator/preload/work.h"

namespace firn::preload {

/// A copy within a graph, which runs at each launch: from the host (its bytes are read then), or
/// within the device.
struct GraphCopy {
  uint64_t to = 0, from = 0;
  size_t bytes = 0;
  bool from_host = false;
};

struct GraphSet {
  std::vector<uint64_t> words;  // addresses in arenas, in any order
  std::vector<GraphCopy> copies;
  void add(const GraphSet& other);
  void tidy();                  // each word once
  size_t tidied = 0;
};

/// What a call would have touched. (Nothing of it runs yet, so nothing is brought back.)
void note_captured(CUgraph graph, std::span<const uint64_t> words,
                   std::span<const GraphCopy> copies = {});
/// An executable was given other parameters.
void note_executable(CUgraphExec exec, std::span<const uint64_t> words);
/// What one graph uses, another one does from now on.
void join_graphs(CUgraph into, CUgraph from);
void join_executable(CUgraphExec into, CUgraph from);

}  // namespace firn::preload
