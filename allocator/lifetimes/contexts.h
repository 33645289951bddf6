// Finds where the last K events occurred before, for a few K. Fixed-size tables map the hash of K
// events to the newest position at which they ended; newer overwrites older, and each hit is
// verified against the ring. The caller holds the lock.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "allocator/base/zero_array.h"
#include "allocator/lifetimes/events.h"

namespace firn::lifetimes {

class Contexts {
 public:
  /// Longest first. `live`: live bytes are part of the context, to distinguish layers that are
  /// otherwise alike. `sampled`: recorded and looked up only where the hash of the last few events
  /// ends in so many zero bits, which makes long contexts cheap.
  struct Kind {
    uint64_t length;
    bool coarse, live;
    int sampled;
  };
  static constexpr std::array<Kind, 8> kinds{{{8192, false, false, 3},
                                              {1024, false, false, 3},
                                              {128, false, false, 2},
                                              {16, false, true, 0},
                                              {16, false, false, 0},
                                              {6, false, true, 0},
                                              {128, true, false, 2},
                                              {16, true, false, 0}}};

  explicit Contexts(size_t events_most);
  /// Records the contexts that end with the newest event.
  void insert(const Events& events);
  /// The newest earlier position at which context `which` of the newest event ended; 0: none.
  uint64_t find(const Events& events, size_t which) const;
  /// Is `which` looked up at the newest event?
  bool due(const Events& events, size_t which) const;
  /// Do the contexts of kind `which` at both positions agree (live bytes aside)?
  bool same(const Events& events, size_t which, uint64_t a, uint64_t b) const;
  size_t bytes() const;

 private:
  uint64_t hash(const Events& events, size_t which, uint64_t position) const;
  uint64_t sample(const Events& events) const;

  std::array<uint64_t, kinds.size()> powers_;
  std::vector<ZeroArray<uint32_t>> tables_;  // one of each kind: the low half of positions
  uint64_t sample_power_;
};

}  // namespace firn::lifetimes
