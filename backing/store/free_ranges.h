// The free room of one spill file: best fit, coalescing at once. Owns two ordered views of the same
// set of ranges. No lock: the store's guards it.
//
// Invariants: ranges are disjoint, never adjacent (they would have been joined), never empty; both
// views hold the same ranges; free_bytes() is their sum. If memory is out (std::bad_alloc, from
// give() alone), nothing has changed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace firn {

class FreeRanges {
 public:
  /// The smallest range that holds `bytes`, the lowest of equals; its front is taken.
  std::optional<uint64_t> take(uint64_t bytes);
  /// Gives [offset, offset + bytes) back, or adds new room. Aborts when any of it is free already.
  void give(uint64_t offset, uint64_t bytes);
  /// Length of the free range that ends exactly at `end`; 0 when there is none.
  uint64_t tail(uint64_t end) const;

  uint64_t free_bytes() const { return free_bytes_; }
  uint64_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  const std::map<uint64_t, uint64_t>& ranges() const { return by_offset_; }
  /// Walks both views; aborts on a broken invariant. For tests.
  void check() const;

 private:
  std::map<uint64_t, uint64_t> by_offset_;           // offset -> bytes
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // (bytes, offset)
  uint64_t free_bytes_ = 0;
};

}  // namespace firn
