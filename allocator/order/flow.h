// Maximum flow and minimum cut (Dinic 1970). Owns: its arrays, kept from one use to the next.
// Locks: none.
#pragma once

#include <cstdint>
#include <vector>

namespace firn::order {

class Flow {
 public:
  static constexpr uint64_t unlimited = uint64_t{1} << 63;
  static constexpr uint32_t source = 0, sink = 1;

  /// Forgets everything; nodes are source, sink and those from 2 on.
  void reset(uint32_t nodes);
  uint32_t add_node();
  /// The capacities below unlimited also sum to less than it.
  void add(uint32_t from, uint32_t to, uint64_t capacity);
  /// At most once after reset().
  uint64_t run();
  /// After run(): on the source's side of the minimum cut with fewest nodes there.
  bool near_source(uint32_t node) const { return level_[node] != far; }
  /// The same for the cut with most nodes on the source's side; walks over all nodes.
  std::vector<uint8_t> widest() const;
  /// Nodes and arcs walked, ever.
  uint64_t work() const { return work_; }

 private:
  static constexpr uint32_t far = 0xffffffff;
  struct Arc {
    uint32_t to, next;
    uint64_t left;  // the arc's back arc is its number ^ 1
  };
  bool levels();
  uint64_t block();

  std::vector<Arc> arcs_;
  std::vector<uint32_t> first_, at_, level_, queue_, path_;
  uint64_t work_ = 0;
};

}  // namespace firn::order
