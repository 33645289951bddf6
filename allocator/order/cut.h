// Finds the fewest bytes that can be alive while one operator runs. The operators run by then are a
// set with all its predecessors; the bytes alive after it are a sum over storages of "its maker is
// in, one that names it is not": a cut in a network, whose minimum is found (Picard 1976).
// Owns: its arrays, kept from one use to the next. Locks: none (one per thread).
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/order/flow.h"
#include "allocator/order/graph.h"
#include "allocator/order/sequence.h"

namespace firn::order {

class Cutter {
 public:
  /// Keeps references.
  Cutter(const Graph& graph, const Precedence& precedence);

  /// Which operators of equal merit run before: as few as possible, or as many.
  enum class Side : uint8_t { fewest, most };

  /// The fewest bytes alive while the operator at `position` runs, if those before `begin` run
  /// before it and those from `end` on after it.
  uint64_t cut(const Sequence& sequence, uint32_t begin, uint32_t end, uint32_t position,
               Side side);
  /// After cut(): the operators of [begin, end): those that run before it, the operator, the rest;
  /// each group in its old order.
  const std::vector<uint32_t>& parted() const { return parted_; }
  /// Where in parted() the operator is.
  uint32_t before() const { return before_; }
  /// Operators, nodes and arcs visited since the last call.
  uint64_t take_work();

 private:
  enum class Where : uint8_t { undecided, sooner, later };
  void decide(const Sequence& sequence, uint32_t begin, uint32_t end, uint32_t op);
  void spread(const Sequence& sequence, uint32_t begin, uint32_t end, uint32_t op, Where where);
  Where where_runs(const Sequence& sequence, uint32_t begin, uint32_t end, uint32_t op) const;
  void add_storage(uint32_t storage, Where made, bool later);

  const Graph& graph_;
  const Precedence& precedence_;
  Flow flow_;
  std::vector<Where> where_;       // of each operator
  std::vector<uint32_t> node_;     // of each operator that is undecided
  std::vector<uint32_t> seen_;     // of each storage: the last cut that visited it
  uint32_t cut_ = 0;
  std::vector<uint32_t> queue_, namers_, parted_;
  uint32_t before_ = 0;
  uint64_t looked_ = 0, taken_ = 0;
};

}  // namespace firn::order
