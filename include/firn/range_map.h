// Best-fit allocation of ranges out of growing address space, with coalescing of neighbours. Owns
// only the bookkeeping. Serves the arena's addresses, staging memory, small segments and the room
// of spill files. The caller holds the lock.
//
// take() allocates the bookkeeping that releasing the range will need: release() needs no memory,
// so that the end of a block, a copy or a request never fails half way. take() and add() throw
// std::bad_alloc with nothing changed. That costs 130 bytes for each taken range, and no time: what
// release() would allocate is there.
//
// Invariants: free ranges are disjoint and never empty; both views hold the same.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "firn/check.h"

namespace firn {

class RangeMap {
 public:
  /// Adds [begin, begin + bytes) as free. It does not join a neighbour that was added separately
  /// unless they touch and `join`.
  void add(uint64_t begin, uint64_t bytes, bool join = false) {
    Nodes nodes = make();
    total_ += bytes;
    if (join)
      give(std::move(nodes), begin, bytes);
    else
      insert(std::move(nodes), begin, bytes);
  }

  /// The lowest address of the smallest free range that fits, the lowest of equals. None for none.
  std::optional<uint64_t> take(uint64_t bytes) {
    auto it = by_size_.lower_bound({bytes, 0});
    if (bytes == 0 || it == by_size_.end()) return std::nullopt;
    const auto [size, begin] = *it;
    if (spare_.size() == spare_.capacity()) spare_.reserve(2 * spare_.size() + 8);
    Nodes made;
    if (size > bytes) made = make();
    Nodes nodes{by_begin_.extract(begin), by_size_.extract(it)};
    if (size > bytes) {
      insert(std::move(nodes), begin + bytes, size - bytes);
      nodes = std::move(made);
    }
    spare_.push_back(std::move(nodes));
    used_ += bytes;
    return begin;
  }

  /// Gives a taken range back, joining it with free neighbours. `barrier`: addresses that are
  /// multiples of it are never joined across (0: none).
  void release(uint64_t begin, uint64_t bytes, uint64_t barrier = 0) {
    FIRN_CHECK(bytes > 0 && used_ >= bytes, "release of %llu bytes, %llu used", (unsigned long long)bytes,
               (unsigned long long)used_);
    // (One is kept for each taken range. A range released in parts needs more.)
    Nodes nodes;
    if (spare_.empty()) {
      nodes = make();
    } else {
      nodes = std::move(spare_.back());
      spare_.pop_back();
    }
    used_ -= bytes;
    give(std::move(nodes), begin, bytes, barrier);
  }

  /// Takes exactly [begin, begin + bytes) out of the map when all of it is free.
  bool remove(uint64_t begin, uint64_t bytes) {
    auto it = by_begin_.find(begin);
    if (it == by_begin_.end() || it->second != bytes) return false;
    by_size_.erase({bytes, begin});
    by_begin_.erase(it);
    total_ -= bytes;
    return true;
  }

  uint64_t used() const { return used_; }
  uint64_t total() const { return total_; }
  uint64_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  /// Length of the free range that ends exactly at `end`; 0 when there is none.
  uint64_t tail(uint64_t end) const {
    const auto after = by_begin_.lower_bound(end);
    if (after == by_begin_.begin()) return 0;
    const auto last = std::prev(after);
    return last->first + last->second == end ? last->second : 0;
  }
  const std::map<uint64_t, uint64_t>& free_ranges() const { return by_begin_; }
  /// Walks both views; aborts on a broken invariant. For tests.
  void check() const {
    uint64_t sum = 0, end = 0;
    for (const auto& [begin, bytes] : by_begin_) {
      FIRN_CHECK(bytes > 0 && begin >= end, "range at %llx in another", (unsigned long long)begin);
      FIRN_CHECK(by_size_.contains({bytes, begin}), "range at %llx is in one view only",
                 (unsigned long long)begin);
      end = begin + bytes;
      sum += bytes;
    }
    FIRN_CHECK(by_size_.size() == by_begin_.size(), "%zu and %zu ranges", by_size_.size(),
               by_begin_.size());
    FIRN_CHECK(sum == total_ - used_, "%llu free, %llu counted", (unsigned long long)sum,
               (unsigned long long)(total_ - used_));
  }

 private:
  using ByBegin = std::map<uint64_t, uint64_t>;             // begin -> bytes
  using BySize = std::set<std::pair<uint64_t, uint64_t>>;   // (bytes, begin)
  /// A range's nodes of both containers, while in neither.
  struct Nodes {
    ByBegin::node_type begin;
    BySize::node_type size;
  };

  static Nodes make() {
    ByBegin begin{{0, 0}};
    BySize size{{0, 0}};
    return {begin.extract(begin.begin()), size.extract(size.begin())};
  }
  void insert(Nodes nodes, uint64_t begin, uint64_t bytes) {
    nodes.begin.key() = begin;
    nodes.begin.mapped() = bytes;
    nodes.size.value() = {bytes, begin};
    by_begin_.insert(std::move(nodes.begin));
    by_size_.insert(std::move(nodes.size));
  }
  void give(Nodes nodes, uint64_t begin, uint64_t bytes, uint64_t barrier = 0) {
    auto next = by_begin_.lower_bound(begin);
    FIRN_CHECK(next == by_begin_.end() || begin + bytes <= next->first,
               "range %llx+%llx freed twice", (unsigned long long)begin,
               (unsigned long long)bytes);
    if (next != by_begin_.end() && next->first == begin + bytes &&
        !(barrier && next->first % barrier == 0)) {
      bytes += next->second;
      by_size_.erase({next->second, next->first});
      next = by_begin_.erase(next);
    }
    if (next != by_begin_.begin()) {
      auto previous = std::prev(next);
      FIRN_CHECK(previous->first + previous->second <= begin, "range %llx freed twice",
                 (unsigned long long)begin);
      if (previous->first + previous->second == begin && !(barrier && begin % barrier == 0)) {
        begin = previous->first;
        bytes += previous->second;
        by_size_.erase({previous->second, previous->first});
        by_begin_.erase(previous);
      }
    }
    insert(std::move(nodes), begin, bytes);
  }

  ByBegin by_begin_;
  BySize by_size_;
  std::vector<Nodes> spare_;
  uint64_t used_ = 0, total_ = 0;
};

}  // namespace firn
