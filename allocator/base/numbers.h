// Numbers from words. Owns: nothing. Locks: none.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace firn {

/// The number that is the whole word; none for other words, and for numbers that Number cannot hold.
template <class Number>
std::optional<Number> as_number(std::string_view word) {
  Number number{};
  const char* const end = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data(), end, number);
  if (error != std::errc() || at != end) return std::nullopt;
  return number;
}

}  // namespace firn
