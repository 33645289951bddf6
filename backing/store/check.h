// Always-on assertion for programmer errors, printing values. Never the only check of a system
// call.
#pragma once

#include <cstdio>
#include <cstdlib>

#define FIRN_STORE_CHECK(condition, ...)                                                        \
  do {                                                                                          \
    if (!(condition)) [[unlikely]] {                                                            \
      std::fprintf(stderr, "firn: store: %s:%d: broken: %s: ", __FILE__, __LINE__, #condition); \
      std::fprintf(stderr, __VA_ARGS__);                                                        \
      std::fputc('\n', stderr);                                                                 \
      std::abort();                                                                             \
    }                                                                                           \
  } while (0)
