// An order of all operators and the bytes alive at each place of it. Pieces of it can be reordered;
// derived values are updated in time linear in the piece.
// Owns: its arrays. Locks: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "allocator/order/graph.h"

namespace firn::order {

class Sequence {
 public:
  /// Keeps a reference. `ops` is a topological order of all.
  Sequence(const Graph& graph, std::vector<uint32_t> ops);

  const std::vector<uint32_t>& ops() const { return ops_; }
  uint32_t operator[](uint32_t place) const { return ops_[place]; }
  uint32_t place(uint32_t op) const { return places_[op]; }
  uint32_t size() const { return static_cast<uint32_t>(ops_.size()); }
  /// Bytes alive between the operators before `place` and those from it on; without graph.base.
  uint64_t before(uint32_t place) const { return before_[place]; }
  /// Bytes alive while the operator at `place` runs.
  uint64_t during(uint32_t place) const { return before_[place] + graph_->made_bytes[ops_[place]]; }
  /// The place of the last operator that names it.
  uint32_t last(uint32_t storage) const { return last_[storage]; }

  /// The first place in [begin, end) of the largest during(); begin < end.
  uint32_t worst(uint32_t begin, uint32_t end) const;
  uint64_t peak() const { return size() == 0 ? graph_->at_start : during(worst(0, size())); }
  /// The operators from `begin` on, in another order.
  void replace(uint32_t begin, std::span<const uint32_t> ops);

 private:
  void rescan(uint32_t begin, uint32_t end);

  const Graph* graph_;
  std::vector<uint32_t> ops_, places_;
  std::vector<uint32_t> last_;    // of each storage
  std::vector<uint64_t> before_;  // of each place, and of the end
};

}  // namespace firn::order
