// The last decision in terms of the tiers' blocks (`Handle`), and how far it was carried out
// (carry_out.h, which alone changes that); and how many bytes it may have on their way.
//
// Owns: nothing. Pages are device memory's (memory/units.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace firn::lifetimes {

/// Bytes on their way in one direction at most: as much as keeps a channel busy, and little enough
/// to leave host memory for others. `span`, `host`: bytes.
constexpr uint64_t in_flight_most(uint64_t span, uint64_t host) {
  return std::min(4 * span, host / 8);
}

/// Bytes of host memory that transfers need; half as many where nothing is copied out `ahead` of
/// leaving.
constexpr uint64_t transfers_most(uint64_t span, uint64_t host, bool ahead) {
  return (ahead ? 4 : 2) * in_flight_most(span, host);
}

/// Bytes of host memory that are not planned for keeping: for transfers, for the `spare` bytes of
/// copies made ahead of leaving, and for gaps between pieces of different sizes.
constexpr uint64_t host_reserve(uint64_t span, uint64_t host, uint64_t spare, bool ahead = true) {
  constexpr uint64_t gaps_part = 32;
  return transfers_most(span, host, ahead) + spare + host / gaps_part;
}

/// Bytes of host memory for keeping, while `to_clean` bytes are to be copied out ahead of leaving.
constexpr uint64_t host_for_keeping(uint64_t span, uint64_t host, uint64_t spare,
                                    uint64_t to_clean) {
  return host - std::min(host, host_reserve(span, host, std::min(spare, to_clean), to_clean > 0));
}

/// A block as it was when a decision was asked for. `Handle`: the tiers' name of it.
template <class Handle>
struct Named {
  Handle block;
  uint32_t life;     // the handle may be another block's by now
  uint64_t touched;  // a touch since makes what was decided void
};

/// The last decision, and how far it was carried out.
template <class Handle>
struct Plan {
  struct Candidate : Named<Handle> {  // to leave, come back, be read or written
    uint64_t next_use;  // an event's number
    uint64_t pages;     // to be away or clean; in `fetch`: to be on the device
    bool spare = false; // to leave only while nothing else does
  };
  bool valid = false;
  uint64_t made = 0;            // event number
  uint64_t made_ns = 0;
  uint64_t window = 0;          // event number until which everything has room
  uint64_t memory_window = 0;   // the same for the device and host memory together
  uint64_t period = 0;          // events
  uint64_t excess = 0;          // pages that do not fit the device at the period's peak
  std::deque<Candidate> fetch;      // in the order of next use
  std::vector<Candidate> farthest;  // on the device, the farthest next use first
  std::vector<Candidate> leaving;   // to be copied out ahead, in that order
  std::vector<Candidate> reads;     // partly only in the store; to come to memory, by next use
  std::vector<Candidate> writes;    // to be in the store, in that order
  // The first candidate of each that may still be of use.
  size_t evicted = 0, cleaned = 0, read = 0, written = 0;
  bool write_looked = false;    // `writes` has been searched: nothing left to begin
};

/// A piece of a block, from its head.
template <class Handle>
struct PieceOf {
  Handle block;
  size_t piece;
};

}  // namespace firn::lifetimes
