// The only conversion from JSON to text. Strings (file names, lines of programs, messages of
// drivers) may hold any bytes. Owns: nothing. Locks: none.
#pragma once

#include <string>

namespace firn {

/// `json` (nlohmann's, ordered or not) as text, on one line or indented. Invalid UTF-8 becomes
/// U+FFFD, where plain dump() would throw.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace firn
