// Locks: none.
#include "allocator/command/report.h"

#include <cstdio>

namespace firn::command {

std::string one_line(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  std::string line;
  for (const char c : text) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    line += control ? ' ' : c;
  }
  return line;
}

int refuse(std::string_view text, int status) {
  std::fprintf(stderr, "firn: %s\n", one_line(text).c_str());
  return status;
}

void warn(std::string_view text) {
  std::fprintf(stderr, "firn: warning: %s\n", one_line(text).c_str());
}

}  // namespace firn::command
