// Faults that only a test has in the library, to see that its oracles find them: FIRN_CANARY(n) is
// false, and in a build with -DFIRN_CANARIES true where the environment's FIRN_CANARY is n
// (tests/simulation/canaries.cpp says what each is).
#pragma once

#ifdef FIRN_CANARIES
#include <cstdlib>

namespace firn {
inline bool canary(int number) {
  static const char* const chosen = std::getenv("FIRN_CANARY");
  return chosen && std::atoi(chosen) == number;
}
/// The first of the process, whatever is asked for later.
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
