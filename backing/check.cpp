#include "firn/check.h"

#include <fcntl.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "firn/descriptor.h"

namespace firn {

namespace {
/// The process's stderr, for a thread that is about to end it and may have no number for it.
std::FILE* last_words() {
  const int fd =
      has_own_table() ? ::open("/proc/self/fd/2", O_WRONLY | O_APPEND | O_NOCTTY | O_NONBLOCK) : -1;
  std::FILE* const words = fd >= 0 ? ::fdopen(fd, "w") : nullptr;
  return words ? words : stderr;
}
}  // namespace

void broken(const char* file, int line, const char* condition, const char* values, ...) {
  std::FILE* const words = last_words();
  std::fprintf(words, "firn: %s:%d: broken: %s: ", file, line, condition);
  va_list arguments;
  va_start(arguments, values);
  std::vfprintf(words, values, arguments);
  va_end(arguments);
  std::fputc('\n', words);
  (void)std::fflush(words);
  std::abort();
}

}  // namespace firn
