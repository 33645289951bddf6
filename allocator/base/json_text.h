// The one way from JSON to text. Strings hold names of files, lines of programs, words of drivers:
// any bytes. Owns: nothing. Locks: none.
#pragma once

#include <string>

namespace firn {

/// `json` (nlohmann's, ordered or not) as text, on one line or indented. What is no UTF-8 comes as
/// U+FFFD, where dump() by itself would throw.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace firn
