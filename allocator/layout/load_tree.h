// The bytes still to be placed in every section: sums change over ranges, and the largest of a
// range is found. Owns: its arrays. Locks: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace firn::layout {

class LoadTree {
 public:
  struct Most {
    uint64_t bytes = 0;
    uint32_t section = 0;
  };
  explicit LoadTree(std::span<const uint64_t> loads);
  /// Takes `bytes` off [begin, end); no section may go below 0.
  void take(uint32_t begin, uint32_t end, uint64_t bytes);
  /// The largest of [begin, end), begin < end.
  Most most(uint32_t begin, uint32_t end) const;

 private:
  // most_: the largest sum below a node, less what was taken from whole nodes below it and from it
  // (taken_), but not what was taken from its ancestors.
  std::vector<uint64_t> most_, taken_;
  uint32_t leaves_ = 1;
};

}  // namespace firn::layout
