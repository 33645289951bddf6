// Whether a directory gets new slots, by its disk's recent errors. Slots that it has are read in
// any case. Owns: nothing. Locks: none; the store's guards it. Time is the caller's.
#pragma once

#include <cstdint>
#include <deque>

namespace firn {

class DirHealth {
 public:
  static constexpr uint64_t second_ns = 1'000'000'000;
  /// A pause after an error; each that follows soon is twice as long as the one before.
  static constexpr uint64_t pause_least_ns = second_ns, pause_most_ns = 64 * second_ns;
  /// After so many sums that stayed wrong, or so many healed reads within a time (the limits of
  /// ZFS), the disk is never trusted again.
  static constexpr unsigned wrong_most = 2, healed_most = 10;
  static constexpr uint64_t healed_within_ns = 600 * second_ns;

  /// An I/O error other than for want of space. True: a pause begins.
  bool failed(uint64_t now_ns);
  /// A sum that was wrong by every path. True: this takes the directory out of use.
  bool wrong();
  /// A sum that was wrong, and right when read again. True: as wrong().
  bool healed(uint64_t now_ns);

  bool takes_slots(uint64_t now_ns) const { return !distrusted_ && now_ns >= pause_end_ns_; }
  bool distrusted() const { return distrusted_; }
  bool pauses(uint64_t now_ns) const { return !distrusted_ && now_ns < pause_end_ns_; }
  uint64_t pause_ns() const { return pause_ns_; }  // the newest one's length

 private:
  bool distrust(bool due);

  uint64_t pause_ns_ = 0, pause_end_ns_ = 0;
  unsigned wrong_ = 0;
  std::deque<uint64_t> healed_ns_;  // the newest, in order; never more than healed_most
  bool distrusted_ = false;
};

}  // namespace firn
