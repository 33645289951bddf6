// Always-on assertions for programmer errors and broken invariants, printing values. Never the only
// check of a system or driver call.
#pragma once

#include <cstdio>
#include <cstdlib>

#define FIRN_CHECK(condition, ...)                                                       \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "firn: %s:%d: broken: %s: ", __FILE__, __LINE__, #condition); \
      std::fprintf(stderr, __VA_ARGS__);                                                 \
      std::fputc('\n', stderr);                                                          \
      std::abort();                                                                      \
    }                                                                                    \
  } while (0)
