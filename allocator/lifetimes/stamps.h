// The times at which the device reached positions of the history: sparse, interpolated between. The
// caller holds the lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace firn::lifetimes {

class Stamps {
 public:
  explicit Stamps(size_t most) : most_(most) {}
  /// The device had finished everything up to `position` at `device_ns`. Ignored unless it is later
  /// than the last.
  void add(uint64_t position, uint64_t device_ns);
  /// Time from one position to a later one; beyond the last stamp at the pace of all before it.
  /// False: too little is known.
  bool between(uint64_t from, uint64_t to, uint64_t& ns) const;
  /// Time of so many positions up to one of the last stamps: the one for which the least is
  /// interpolated. False: too little is known.
  bool last(uint64_t positions, uint64_t& ns) const;

 private:
  struct Stamp {
    uint64_t position, ns;
  };
  double at(uint64_t position) const;

  size_t most_;
  std::deque<Stamp> stamps_;  // both ascending
};

}  // namespace firn::lifetimes
