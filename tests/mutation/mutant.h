// What a mutated source has around each of its branch conditions (mutants.py): the condition as it
// is, but for the one mutant that the environment's FIRN_MUTANT names, which is constant.
#pragma once

#include <cstdlib>
#include <type_traits>

namespace firn::mutation {
inline const int chosen = [] {
  const char* number = std::getenv("FIRN_MUTANT");
  return number ? std::atoi(number) : 0;
}();

/// `number`: the mutant that is always true; the next one is always false.
constexpr bool branch(int number, bool condition) {
  if (std::is_constant_evaluated()) return condition;
  return chosen == number ? true : chosen == number + 1 ? false : condition;
}
}  // namespace firn::mutation

#define FIRN_BRANCH(number, ...) \
  ::firn::mutation::branch(number, static_cast<bool>(__VA_ARGS__))
