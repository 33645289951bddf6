// An order of all operators and the bytes alive at each position of it. Pieces of it can be
// reordered; derived values are updated in time linear in the piece.
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
  uint32_t operator[](uint32_t position) const { return ops_[position]; }
  uint32_t position(uint32_t op) const { return positions_[op]; }
  uint32_t size() const { return static_cast<uint32_t>(ops_.size()); }
  /// Bytes alive between the operators before `position` and those from it on; without graph.base.
  uint64_t before(uint32_t position) const { return before_[position]; }
  /// Bytes alive while the operator at `position` runs.
  uint64_t during(uint32_t position) const {
    return before_[position] + graph_->made_bytes[ops_[position]];
  }
  /// The position of the last operator that names it.
  uint32_t last(uint32_t storage) const { return last_[storage]; }

  /// The first position in [begin, end) of the largest during(); begin < end.
  uint32_t worst(uint32_t begin, uint32_t end) const;
  uint64_t peak() const { return size() == 0 ? graph_->at_start : during(worst(0, size())); }
  /// The operators from `begin` on, in another order.
  void replace(uint32_t begin, std::span<const uint32_t> ops);

 private:
  void rescan(uint32_t begin, uint32_t end);

  const Graph* graph_;
  std::vector<uint32_t> ops_, positions_;
  std::vector<uint32_t> last_;    // of each storage
  std::vector<uint64_t> before_;  // of each position, and of the end
};

}  // namespace firn::order
