#include "allocator/report/address_axis.h"

#include <algorithm>

namespace firn::report {

AddressAxis::AddressAxis(const std::vector<Life>& lives, uint64_t unit) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  ranges.reserve(lives.size());
  for (const Life& life : lives) {
    // A trace may give a block more bytes than there are addresses after it.
    const uint64_t bytes = std::max<uint64_t>(life.bytes, 1), most = UINT64_MAX - life.address;
    const uint64_t whole = bytes / unit * unit, rest = bytes % unit == 0 ? 0 : unit;
    ranges.emplace_back(life.address,
                        life.address + (whole > most || rest > most - whole ? most : whole + rest));
  }
  std::sort(ranges.begin(), ranges.end());
  for (const auto& [begin, end] : ranges) {
    if (!used_.empty() && begin <= used_.back().end) {
      used_.back().end = std::max(used_.back().end, end);
    } else {
      if (!used_.empty()) bytes_ += used_.back().end - used_.back().begin;
      used_.push_back({begin, end, bytes_});
    }
  }
  if (!used_.empty()) bytes_ += used_.back().end - used_.back().begin;
}

uint64_t AddressAxis::position(uint64_t address) const {
  auto after = std::upper_bound(used_.begin(), used_.end(), address,
                                [](uint64_t at, const Stretch& each) { return at < each.begin; });
  if (after == used_.begin()) return 0;
  const Stretch& in = *--after;
  return in.position + std::min(address - in.begin, in.end - in.begin);
}

}  // namespace firn::report
