// Faults put into the library on purpose, to see that a test's oracles find them: FIRN_CANARY(n) is
// true in a build with -DFIRN_CANARIES whose environment has FIRN_CANARY=n, else false
// (tests/simulation/canaries/canaries.cpp says what each is).
#pragma once

#ifdef FIRN_CANARIES
#include <cstdlib>

namespace firn {
inline bool canary(int number) {
  static const char* const chosen = std::getenv("FIRN_CANARY");
  return chosen && std::atoi(chosen) == number;
}
/// The first value of the process, whatever the later ones.
template <class T>
T canary_first(T value) {
  static const T first = value;
  return first;
}
}  // namespace firn
#define FIRN_CANARY(number) ::firn::canary(number)
#define FIRN_CANARY_FIRST(number, value) \
  (::firn::canary(number) ? ::firn::canary_first(value) : (value))
#else
#define FIRN_CANARY(number) false
#define FIRN_CANARY_FIRST(number, value) (value)
#endif
