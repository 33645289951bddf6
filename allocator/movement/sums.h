// Sums of copies in host memory, for firn_verify: each copy that is to be summed waits here until a
// thread takes its sum, without the lock. The caller decides when a sum is due and judges it.
//
// Owns: the copies that wait, with a reference to the staging of each, Piece::summing, and the
// count of what was summed. Lock: the engine's, around every call. take() releases it while it
// sums: everything may have changed when it returns. The device's context is current, as HostTier
// wants it. Sums calls nothing above but the function that take() is given, under the lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "allocator/blocks/piece_ref.h"
#include "allocator/memory/driver_time.h"
#include "allocator/memory/host_tier.h"
#include "firn/sum.h"
#include "firn/thread_safety.h"

namespace firn {

class Sums {
 public:
  using Lock = LockedEngine;
  using SumOf = std::function<Sum(const std::byte* data, size_t bytes)>;
  /// `sum_of` sums bytes, without the lock.
  explicit Sums(HostTier& host, SumOf sum_of = firn::sum_of)
      : host_(host), sum_of_(std::move(sum_of)) {}
  Sums(const Sums&) = delete;
  Sums& operator=(const Sums&) = delete;

  /// The piece's copy is to be summed. `arrived`: for the first time; else to be compared. False:
  /// it waits already, or is being summed.
  bool add(const PieceRef& ref, bool arrived) FIRN_HELD;
  using Summed = std::function<void(const PieceRef& ref, bool arrived, const Sum& sum)>;
  /// Takes all sums that are due, one after the other. Each is told to `summed`, if the piece still
  /// has that copy. True: some were taken.
  bool take(Lock& lock, const Summed& summed) FIRN_HELD;
  /// Drops all that are due.
  void drop() FIRN_HELD;

  // Figures.
  bool due() const FIRN_HELD { return !due_.empty(); }
  /// Does a thread take a sum at this moment?
  bool taking() const FIRN_HELD { return taking_ > 0; }
  uint64_t bytes() const FIRN_HELD { return bytes_; }  // summed, ever

 private:
  struct Due {
    PieceRef ref;
    Staging* staging;  // with a reference
    bool arrived;
  };
  HostTier& host_;
  const SumOf sum_of_;
  std::deque<Due> due_ FIRN_GUARDED;
  unsigned taking_ FIRN_GUARDED = 0;  // threads that take one at this moment
  uint64_t bytes_ FIRN_GUARDED = 0;
};

}  // namespace firn
