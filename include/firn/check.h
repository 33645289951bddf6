// Always-on assertions for programmer errors and broken invariants, printing values. Never the only
// check of a system or driver call. From any thread, under any lock (backing/check.cpp).
#pragma once

namespace firn {

/// Says where, which condition, and values as printf(3) does, on the process's stderr, also where
/// the thread has a table of descriptors of its own. Ends the process with SIGABRT.
[[noreturn, gnu::cold, gnu::format(printf, 4, 5)]] void broken(const char* file, int line,
                                                               const char* condition,
                                                               const char* values, ...);

}  // namespace firn

#define FIRN_CHECK(condition, ...)                                  \
  do {                                                              \
    if (!(condition)) [[unlikely]]                                  \
      ::firn::broken(__FILE__, __LINE__, #condition, __VA_ARGS__);  \
  } while (0)
