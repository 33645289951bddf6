// Random numbers of a simulation: small, fast, and the same with every library.
#pragma once

#include <cstdint>

namespace firn::sim {

class Draw {
 public:
  explicit Draw(uint64_t seed = 0) : state_(seed) {}
  uint64_t next() {  // splitmix64
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return next() % n; }
  bool one_in(uint64_t n) { return below(n) == 0; }
  double part() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  /// What step `i` of a seed draws from.
  static Draw of(uint64_t seed, uint64_t i) {
    return Draw(Draw(seed * 0x9e3779b97f4a7c15u + i).next());
  }

 private:
  uint64_t state_;
};

}  // namespace firn::sim
