// Always-on assertion for programmer errors, printing values. Never the only check of a system
// call.
#pragma once

#include <fcntl.h>

#include <cstdio>
#include <cstdlib>

#include "firn/descriptor.h"

namespace firn {

/// The process's stderr, for a thread that is about to end it and may have no number for it.
inline std::FILE* last_words() {
  const int fd =
      has_own_table() ? ::open("/proc/self/fd/2", O_WRONLY | O_APPEND | O_NOCTTY | O_NONBLOCK) : -1;
  std::FILE* const words = fd >= 0 ? ::fdopen(fd, "w") : nullptr;
  return words ? words : stderr;
}

}  // namespace firn

#define FIRN_STORE_CHECK(condition, ...)                                                       \
  do {                                                                                         \
    if (!(condition)) [[unlikely]] {                                                           \
      std::FILE* const words = ::firn::last_words();                                           \
      std::fprintf(words, "firn: store: %s:%d: broken: %s: ", __FILE__, __LINE__, #condition); \
      std::fprintf(words, __VA_ARGS__);                                                        \
      std::fputc('\n', words);                                                                 \
      (void)std::fflush(words);                                                                \
      std::abort();                                                                            \
    }                                                                                          \
  } while (0)
