// The vertical axis of the page: maps addresses to positions on it, leaving out what no block ever
// used.
// Owns: its table. Locks: none.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/report/lives.h"

namespace firn::report {

class AddressAxis {
 public:
  /// Rounds each block up to whole `unit`s, so that blocks drawn in such units do not overlap.
  AddressAxis(const std::vector<Life>& lives, uint64_t unit);
  /// The position of an address within a block, in bytes.
  uint64_t position(uint64_t address) const;
  uint64_t bytes() const { return bytes_; }

 private:
  struct Stretch {
    uint64_t begin, end, position;
  };
  std::vector<Stretch> used_;  // by address
  uint64_t bytes_ = 0;
};

}  // namespace firn::report
