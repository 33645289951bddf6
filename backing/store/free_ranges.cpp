#include "backing/store/free_ranges.h"

#include <iterator>

#include "firn/check.h"

namespace firn {

std::optional<uint64_t> FreeRanges::take(uint64_t bytes) {
  auto best = by_size_.lower_bound({bytes, 0});
  if (bytes == 0 || best == by_size_.end()) return std::nullopt;
  auto [size, offset] = *best;
  // The rest reuses the nodes: that takes no memory.
  auto sized = by_size_.extract(best);
  auto placed = by_offset_.extract(offset);
  if (size > bytes) {
    placed.key() = offset + bytes;
    placed.mapped() = size - bytes;
    sized.value() = {size - bytes, offset + bytes};
    by_offset_.insert(std::move(placed));
    by_size_.insert(std::move(sized));
  }
  free_bytes_ -= bytes;
  return offset;
}

void FreeRanges::give(uint64_t offset, uint64_t bytes) {
  FIRN_CHECK(bytes > 0, "an empty range at %llu", (unsigned long long)offset);
  uint64_t begin = offset, end = offset + bytes;
  // Makes its nodes before anything changes: there may be no memory for them.
  std::map<uint64_t, uint64_t> placed{{begin, bytes}};
  std::set<std::pair<uint64_t, uint64_t>> sized{{bytes, begin}};
  auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.begin()) {
    auto before = std::prev(next);
    uint64_t before_end = before->first + before->second;
    FIRN_CHECK(before_end <= offset, "room at %llu given twice", (unsigned long long)offset);
    if (before_end == offset) {
      begin = before->first;
      by_size_.erase({before->second, before->first});
      by_offset_.erase(before);
    }
  }
  if (next != by_offset_.end()) {
    FIRN_CHECK(next->first >= end, "room at %llu given twice",
               (unsigned long long)next->first);
    if (next->first == end) {
      end += next->second;
      by_size_.erase({next->second, next->first});
      by_offset_.erase(next);
    }
  }
  auto place = placed.extract(placed.begin());
  place.key() = begin;
  place.mapped() = end - begin;
  auto size = sized.extract(sized.begin());
  size.value() = {end - begin, begin};
  by_offset_.insert(std::move(place));
  by_size_.insert(std::move(size));
  free_bytes_ += bytes;
}

uint64_t FreeRanges::tail(uint64_t end) const {
  auto after = by_offset_.lower_bound(end);
  if (after == by_offset_.begin()) return 0;
  auto last = std::prev(after);
  return last->first + last->second == end ? last->second : 0;
}

void FreeRanges::check() const {
  uint64_t sum = 0, end = 0;
  bool first = true;
  for (auto [offset, bytes] : by_offset_) {
    FIRN_CHECK(bytes > 0 && (first || offset > end), "range at %llu touches its neighbour",
               (unsigned long long)offset);
    FIRN_CHECK(by_size_.contains({bytes, offset}), "range at %llu is in one view only",
               (unsigned long long)offset);
    first = false;
    end = offset + bytes;
    sum += bytes;
  }
  FIRN_CHECK(by_size_.size() == by_offset_.size(), "%zu and %zu ranges", by_size_.size(),
             by_offset_.size());
  FIRN_CHECK(sum == free_bytes_, "%llu free, %llu counted", (unsigned long long)sum,
             (unsigned long long)free_bytes_);
}

}  // namespace firn
