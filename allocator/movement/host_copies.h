// Copies of pieces in host memory: which of them are in the store too, which wait to be written,
// and which give way when host memory is wanted for others. What is wanted and when is decided
// elsewhere.
//
// A copy (Piece::host, host_valid) stays where it arrived until it is dropped here or with all of
// its block's copies. The searches below drop one only while its bytes are valid elsewhere and
// nothing else holds its staging (a copy, a write, a sum); drop() trusts its caller.
//
// Owns: lists of pieces by name (a name that is out of date is passed over); the staging is the
// pieces'. Lock: the engine's; the device's context is current, as HostTier wants it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "allocator/blocks/piece_ref.h"
#include "allocator/memory/host_tier.h"
#include "firn/thread_safety.h"

namespace firn {

class HostCopies {
 public:
  explicit HostCopies(HostTier& host) : host_(host) {}

  // Where a copy stands.
  /// It came from the device, and is not in the store.
  void arrived(const PieceRef& ref) FIRN_HELD;
  /// Its write did not happen: it is the next one again.
  void put_back(const PieceRef& ref) FIRN_HELD { unwritten_.push_front(ref); }
  /// It is in the store as well: written there, or read from there.
  void stored(const PieceRef& ref) FIRN_HELD { stored_.push_back(ref); }
  /// Its bytes have come to the device as well.
  void returned(const PieceRef& ref) FIRN_HELD;

  // Takes what is to be written next out of the list. None: nothing can be written.
  std::optional<PieceRef> next_by_arrival() FIRN_HELD;
  /// The copy of the block that is used last (Block::next_use).
  std::optional<PieceRef> next_by_use() FIRN_HELD;
  /// At most so many wait to be written (some references are stale).
  size_t unwritten() const FIRN_HELD { return unwritten_.size(); }
  /// The same of those that have come to the device.
  size_t returned() const FIRN_HELD { return returned_.size(); }
  /// Is it in host memory, neither in the store nor on its way there, and not being written there?
  static bool is_unwritten(const PieceRef& ref) FIRN_HELD;

  /// Frees the piece's copy, valid elsewhere or not.
  void drop(Piece& piece) FIRN_HELD;

  // Each frees the first copy that it finds. False: none may be dropped so. `window`: events'
  // number until which everything that is used has room on the device.
  /// Of what came to the device, stays there until it is used, and changes or dies then.
  bool drop_returned(uint64_t window) FIRN_HELD;
  /// In the store too, and used later than `wanted_at`: the one that is used last; one whose bytes
  /// are on the device until their use before all others.
  bool drop_used_after(uint64_t wanted_at, uint64_t window) FIRN_HELD;
  /// By a plan: the first of both.
  bool drop_planned(uint64_t wanted_at, uint64_t window) FIRN_HELD {
    return drop_returned(window) || drop_used_after(wanted_at, window);
  }
  /// In the store too: the one that has been there for longest.
  bool drop_stored() FIRN_HELD;
  /// On the device too, and not in the store.
  bool drop_resident() FIRN_HELD;
  /// Would so many bytes be free without all of these?
  bool resident_suffice(uint64_t bytes) const FIRN_HELD;
  /// All copies in the extent that host memory gives back, where their bytes are valid elsewhere.
  void drop_closed(std::span<Block* const> blocks) FIRN_HELD;

  struct GiveWay {
    std::optional<uint64_t> window;  // of a plan; none: there is no plan
    bool resident;                   // copies that are on the device, too, if that suffices: else
                                     // they would be made anew, and dropped anew, for ever
  };
  /// Staging for `bytes` with one reference; copies give way for it one by one. Null: none is
  /// available. `reserve`: bytes that are left to others.
  Staging* staging(size_t bytes, uint64_t reserve, const GiveWay& give_way) FIRN_HELD;

 private:
  HostTier& host_;
  std::deque<PieceRef> unwritten_ FIRN_GUARDED, stored_ FIRN_GUARDED;
  std::deque<PieceRef> returned_ FIRN_GUARDED;  // in the order in which they came to the device
  // List lengths at which stale references are removed.
  size_t unwritten_tidy_ FIRN_GUARDED = 1024, returned_tidy_ FIRN_GUARDED = 1024;
};

}  // namespace firn
