// List scheduling under a budget. A unit is the operators that still have to run to free a storage
// (a whole update of a weight, for one). A small unit that leaves no more alive than before runs as
// soon as it fits into the budget: no order of that peak is lost by it, as bytes alive are
// submodular. Otherwise the next operator of a given order runs.
// Owns: its state. Locks: none.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "allocator/order/graph.h"
#include "allocator/order/stop.h"

namespace firn::order {

class Greedy {
 public:
  /// The choice if no unit frees memory within the budget.
  enum class Else : uint8_t {
    next_given,    // the next operator given, or the unit of least peak if that does not fit
    least_growth,  // the unit after which least is alive
  };
  /// Keeps references. `given` is a topological order.
  Greedy(const Graph& graph, std::span<const uint32_t> given, Turn& turn);

  /// A topological order of all; its peak may exceed the budget (without graph.base). Once the turn
  /// is over, the rest follows as given.
  std::vector<uint32_t> run(uint64_t budget, Else otherwise);

 private:
  /// The operators that still have to run for a storage to be freed, and what that costs.
  struct Unit {
    std::vector<uint32_t> ops;  // in the given order; if too many: some of them
    bool small = false;         // ops are all
    uint32_t done = 0;          // if not small: ops done since they were listed
    int64_t growth = 0;         // bytes alive after, less those before
    int64_t peak = 0;           // bytes alive at most while it runs, less those before
  };
  struct Choice {
    int64_t merit;
    uint32_t storage;
    auto operator<=>(const Choice&) const = default;
  };
  static constexpr size_t unit_max = 32;
  static constexpr uint32_t done_max = 8;  // before a unit that is not small is computed anew

  uint32_t next_unit(uint64_t budget, Else otherwise) const;
  void reset();
  void look(uint32_t storage);
  void forget(uint32_t storage);
  void cost(Unit& unit);
  void run_unit(uint32_t storage);
  void run_op(uint32_t op);
  void look_again();

  const Graph& graph_;
  const std::span<const uint32_t> given_;
  Turn& turn_;
  std::vector<uint32_t> position_;           // of each operator in the given order
  std::vector<uint8_t> done_;                // of each operator
  std::vector<uint32_t> namers_left_;        // of each storage
  std::vector<Unit> units_;                  // of each storage
  std::vector<std::vector<uint32_t>> watched_by_;  // of each operator: storages, some long ago
  std::vector<uint32_t> stale_;              // storages whose unit has changed
  std::vector<uint8_t> is_stale_;
  std::set<Choice> freeing_, growing_;       // small units by growth
  std::set<Choice> by_peak_;                 // small units by peak
  std::vector<uint32_t> order_;
  size_t next_ = 0;                          // all given before it are done
  uint64_t alive_ = 0;
  // Scratch.
  std::vector<uint32_t> mark_, uses_;
  uint32_t marks_ = 0;
  std::vector<uint32_t> touched_;
};

}  // namespace firn::order
