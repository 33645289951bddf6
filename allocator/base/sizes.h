// Sizes as people write them, and foreign words quoted in messages. Owns nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "firn/result.h"

namespace firn {

/// "20GiB" "512MiB" "1.5GB" "4096": bytes. Errors name the word: 0, negative, unknown suffix,
/// overflow, empty.
Result<uint64_t> parse_size(std::string_view word);
/// "20GiB" when that is exact, else two decimals of the unit that fits ("1.46GiB").
std::string format_size(uint64_t bytes);
/// In the largest binary unit that divides it, so that the text can be parsed back; 0: empty.
std::string exact_size(uint64_t bytes);
/// A foreign word in quotes, fit for one line: control characters escaped, long ones cut.
std::string quote_word(std::string_view word);

}  // namespace firn
