// Fails the nth call of a name (a system call, or operator new) that Firn's library makes, once or
// from then on. Calls are Firn's own by their return address: those into the C library are answered
// here, since the program's symbols come first; those that libfirn makes by itself (io_uring's) are
// trapped by seccomp. What the C++ library does for Firn (threads, files, strings) is known by the
// stack. Nobody else's calls are counted or touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace firn::faults {

enum class Kind : uint8_t { system_call, allocation };

/// Names of calls that can fail: functions of the C library, calls of io_uring's, operator new.
inline constexpr size_t names_most = 80;
size_t names();
const char* name_of(size_t name);
Kind kind_of(size_t name);
/// names() where nothing is called so.
size_t name_called(const char* words);

/// Finds Firn's library in this process; once, before any of its calls, in the process whose calls
/// are to fail. False: seccomp is refused here, and io_uring's calls never fail. The name of the
/// first call that fails goes to `first`, too, for whoever sees the process end.
bool begin_interposing(char* first, size_t bytes);
enum class When : uint8_t { once, from, alike };
/// From here the `nth` call of the name fails; then none, all of its kind (`from`), or all of its
/// name (`alike`).
void arm(size_t name, uint64_t nth, When when);
void disarm();
/// Counted since begin_interposing().
uint64_t calls(size_t name);
/// How many failed, of this name, of all; the name of the first of them.
uint64_t failed(size_t name);
uint64_t failed();
const char* first_failed();
/// Imports of libfirn's that no run has failed, so none: neither stand-ins, nor listed as calls
/// that cannot fail (imports.cpp), nor of the C++ library.
std::string unknown_imports();
/// Of any thread: calls of this thread are not counted while it lives.
class Uncounted {
 public:
  Uncounted();
  ~Uncounted();
};

}  // namespace firn::faults
