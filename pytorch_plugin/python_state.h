// The calling thread's Python, where it has one: callbacks of ours come while an operator unwinds
// from a Python exception, at the interpreter's end, and in threads that Python has never seen.
//
// Owns: nothing. Locks: takes the GIL where said. (Python's functions are found at run time: the
// plugin is built for no Python in particular.)
#pragma once

#include <functional>

namespace firn::pytorch {

/// While it lives the thread has the GIL, and a pending Python exception is set aside: the code
/// that is unwinding finds it again, whatever Python does meanwhile. If the thread has no Python
/// state, or the interpreter is ending, it does nothing, and Python must not be called.
class PythonKept {
 public:
  PythonKept();
  ~PythonKept();
  PythonKept(const PythonKept&) = delete;
  PythonKept& operator=(const PythonKept&) = delete;
  /// May Python be called?
  explicit operator bool() const { return taken_; }

 private:
  bool taken_ = false;
  int gil_ = 0;
  void *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

/// Runs `work`, which has Python run code of its own (an import, a file access), with the GIL held.
/// In Python's main thread, a thread of its own does it: signal handlers run between any two of the
/// main thread's instructions, and an exception that one raises belongs to the program and would
/// end here. The caller has a PythonKept. False: not done within two seconds (it may be waiting for
/// a module that this thread is importing), and `work`, which owns all that it uses, goes on by
/// itself. Errors: std::runtime_error, with the words of what `work` threw.
bool run_python(std::function<void()> work);

/// Calls `function` in Python's main thread, when it is between two of its own instructions: no
/// operator that Python called in C++ is under way there. False: it will not, or this is another
/// thread.
bool call_between_operators(int (*function)(void*));

}  // namespace firn::pytorch
