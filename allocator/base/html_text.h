// Escapes foreign text for a page of HTML. Owns: nothing. Locks: none.
#pragma once

#include <string>
#include <string_view>

namespace firn {

/// `text` escaped for use between tags or in a quoted attribute; control characters as blanks.
inline std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '<': out += "&lt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  return out;
}

}  // namespace firn
