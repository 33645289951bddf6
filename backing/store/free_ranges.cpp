#include "backing/store/free_ranges.h"

#include <iterator>

#include "backing/store/check.h"

namespace firn {

std::optional<uint64_t> FreeRanges::take(uint64_t bytes) {
  auto best = by_size_.lower_bound({bytes, 0});
  if (bytes == 0 || best == by_size_.end()) return std::nullopt;
  auto [size, offset] = *best;
  by_size_.erase(best);
  by_offset_.erase(offset);
  if (size > bytes) {
    by_offset_.emplace(offset + bytes, size - bytes);
    by_size_.emplace(size - bytes, offset + bytes);
  }
  free_bytes_ -= bytes;
  return offset;
}

void FreeRanges::give(uint64_t offset, uint64_t bytes) {
  FIRN_STORE_CHECK(bytes > 0, "an empty range at %llu", (unsigned long long)offset);
  uint64_t begin = offset, end = offset + bytes;
  auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.begin()) {
    auto before = std::prev(next);
    uint64_t before_end = before->first + before->second;
    FIRN_STORE_CHECK(before_end <= offset, "room at %llu given twice", (unsigned long long)offset);
    if (before_end == offset) {
      begin = before->first;
      by_size_.erase({before->second, before->first});
      by_offset_.erase(before);
    }
  }
  if (next != by_offset_.end()) {
    FIRN_STORE_CHECK(next->first >= end, "room at %llu given twice",
                     (unsigned long long)next->first);
    if (next->first == end) {
      end += next->second;
      by_size_.erase({next->second, next->first});
      by_offset_.erase(next);
    }
  }
  by_offset_.emplace(begin, end - begin);
  by_size_.emplace(end - begin, begin);
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
    FIRN_STORE_CHECK(bytes > 0 && (first || offset > end), "range at %llu touches its neighbour",
                     (unsigned long long)offset);
    FIRN_STORE_CHECK(by_size_.contains({bytes, offset}), "range at %llu is in one view only",
                     (unsigned long long)offset);
    first = false;
    end = offset + bytes;
    sum += bytes;
  }
  FIRN_STORE_CHECK(by_size_.size() == by_offset_.size(), "%zu and %zu ranges", by_size_.size(),
                   by_offset_.size());
  FIRN_STORE_CHECK(sum == free_bytes_, "%llu free, %llu counted", (unsigned long long)sum,
                   (unsigned long long)free_bytes_);
}

}  // namespace firn
