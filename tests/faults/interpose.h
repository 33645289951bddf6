// Fails the nth system call, or the nth operator new, that Firn's library makes, once or from then
// on. Calls are Firn's own by their return address: those into the C library are answered here,
// since the program's symbols come first; those that libfirn makes by itself (io_uring's) are
// trapped by seccomp. What the C++ library does for Firn (threads, files, strings) is known by the
// stack. Nobody else's calls are counted or touched.
#pragma once

#include <cstddef>
#include <cstdint>

namespace firn::faults {

enum class Kind : uint8_t { system_call, allocation };

/// Finds Firn's library in this process; once, before any of its calls, in the process whose calls
/// are to fail. False: seccomp is refused here, and io_uring's calls never fail. The name of the
/// first call that fails goes to `first`, too, for whoever sees the process end.
bool begin_interposing(char* first, size_t bytes);
/// From here the `nth` call of the kind fails (0: none), and all after it where `lasting`.
void arm(Kind kind, uint64_t nth, bool lasting);
void disarm();
/// Counted since begin_interposing().
uint64_t calls(Kind kind);
/// How many failed; the name of the first of them.
uint64_t failed();
const char* first_failed();
/// Of any thread: calls of this thread are not counted while it lives.
class Uncounted {
 public:
  Uncounted();
  ~Uncounted();
};

}  // namespace firn::faults
