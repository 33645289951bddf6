// Host memory that kernels can reach: pinned, registered and managed. A launch that is given an
// address in it can find addresses of blocks there; its contents are scanned at that moment.
//
// Owns the list of ranges. Lock: one for it; may_be() is lock-free.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace firn::preload {

class HostMemory {
 public:
  /// At most so much is scanned from the given address on; the rest is reported as unseen.
  static constexpr uint64_t looked_at_most = 64u << 10;

  enum class Kind : uint8_t { host, managed };
  void add(const void* base, uint64_t bytes, Kind kind);
  void remove(const void* base);
  /// False for nearly all words that are not addresses of it.
  bool may_be(uint64_t word) const {
    return word - low_.load(std::memory_order_acquire) < span_.load(std::memory_order_acquire);
  }
  /// Appends the addresses of arenas that the range around `address` holds now. False: they are
  /// unknown (managed memory that the host must not read while the device works).
  bool collect(uint64_t address, std::vector<uint64_t>& words) const;

 private:
  std::atomic<uint64_t> low_{0}, span_{0};  // around all ranges there ever were
};

inline HostMemory& host_memory() {
  static HostMemory& all = *new HostMemory;
  return all;
}

}  // namespace firn::preload
