// A graph of operators as the solvers here use it: which operator must precede which, and what each
// one makes and names. Built from what the operators read, make and write in place.
// Owns: its arrays. Locks: none (immutable once built).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "allocator/order/order.h"

namespace firn::order {

inline constexpr uint32_t nothing = 0xffffffff;

/// Lists of numbers, one after the other.
class Lists {
 public:
  Lists() = default;
  /// `pairs`: (list, number); each list keeps their order. Sorts nothing.
  Lists(size_t lists, std::span<const std::pair<uint32_t, uint32_t>> pairs);
  std::span<const uint32_t> operator[](size_t list) const {
    return {numbers_.data() + begins_[list], numbers_.data() + begins_[list + 1]};
  }
  size_t size() const { return begins_.empty() ? 0 : begins_.size() - 1; }

 private:
  std::vector<uint32_t> begins_, numbers_;
};

/// Storages that come and go: temporaries, and those alive from the start to their last use. Those
/// alive throughout, and those of 0 bytes, appear only in `base` and as edges between operators.
struct Graph {
  Lists before, after;      // of each operator: its direct predecessors, successors
  Lists makes;              // of each operator: storages
  Lists names;              // of each operator: storages read, made, written; each once
  Lists named_by;           // of each storage: operators, in the program's order; not empty
  std::vector<uint64_t> bytes;      // of each storage
  std::vector<uint32_t> maker;      // of each storage; nothing: alive from the start
  std::vector<uint64_t> made_bytes;  // of each operator: the sum of what it makes
  uint64_t base = 0;        // bytes alive throughout
  uint64_t at_start = 0;    // bytes alive from the start, without base
  std::vector<uint32_t> given;      // of each storage: its number among the Storages given

  uint32_t ops() const { return static_cast<uint32_t>(made_bytes.size()); }
  uint32_t storages() const { return static_cast<uint32_t>(bytes.size()); }
};

/// Which operator runs before which: the graph's edges, and others that are put in and taken away.
/// Keeps a reference to the graph.
class Precedence {
 public:
  explicit Precedence(const Graph& graph)
      : graph_(&graph), before_(graph.ops()), after_(graph.ops()) {}

  template <typename Visit>
  void each_before(uint32_t op, const Visit& visit) const {
    for (const uint32_t other : graph_->before[op]) visit(other);
    for (const uint32_t other : before_[op]) visit(other);
  }
  template <typename Visit>
  void each_after(uint32_t op, const Visit& visit) const {
    for (const uint32_t other : graph_->after[op]) visit(other);
    for (const uint32_t other : after_[op]) visit(other);
  }
  void add(uint32_t from, uint32_t to) {
    after_[from].push_back(to);
    before_[to].push_back(from);
  }
  /// Removes the edge added last for `from` and for `to`.
  void remove(uint32_t from, uint32_t to) {
    after_[from].pop_back();
    before_[to].pop_back();
  }

 private:
  const Graph* graph_;
  std::vector<std::vector<uint32_t>> before_, after_;
};

/// Needs examine() to have found no trouble.
Graph make_graph(std::span<const Storage> storages, std::span<const Op> ops);

/// Direct predecessors by read-after-write, write-after-read and write-after-write, and the maker
/// of a storage before all else that names it, wherever it stands.
std::vector<std::pair<uint32_t, uint32_t>> dependencies(std::span<const Storage> storages,
                                                        std::span<const Op> ops);

}  // namespace firn::order
