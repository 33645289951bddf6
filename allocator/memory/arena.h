// The arena: one reserved range of device addresses, and a flat table from granule to owner.
// Looking up is lock-free; reserving and freeing addresses needs the engine's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "allocator/base/zero_array.h"
#include "allocator/memory/frames.h"
#include "firn/range_map.h"

namespace firn {

class Arena {
 public:
  /// Reserves `bytes` of addresses (halved until the driver agrees, at least 1/16 of them).
  static Result<std::unique_ptr<Arena>> reserve(const Driver& driver, uint64_t bytes);
  ~Arena();

  bool contains(uint64_t address) const { return address - base_ < bytes_; }
  uint64_t base() const { return base_; }
  uint64_t bytes() const { return bytes_; }

  /// The number at the address, as set() was given it; 0: none.
  uint32_t at(uint64_t address) const {
    return table_[(address - base_) / granule_bytes].load(std::memory_order_acquire);
  }
  void set(uint64_t address, uint32_t granules, uint32_t number) {
    uint64_t first = (address - base_) / granule_bytes;
    for (uint32_t i = 0; i < granules; ++i)
      table_[first + i].store(number, std::memory_order_release);
  }
  std::optional<uint64_t> take(uint32_t granules) { return ranges_.take(granules * granule_bytes); }
  void give(uint64_t address, uint32_t granules) {
    ranges_.release(address, granules * granule_bytes);
  }
  void abandon() { abandoned_ = true; }

 private:
  Arena(const Driver& driver, uint64_t base, uint64_t bytes);
  const Driver& driver_;
  uint64_t base_, bytes_;
  ZeroArray<std::atomic<uint32_t>> table_;
  RangeMap ranges_;
  bool abandoned_ = false;
};

}  // namespace firn
