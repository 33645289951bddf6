// The calling thread's Python, where it has one: callbacks of ours come while an operator unwinds
// from a Python exception, at the interpreter's end, and in threads that Python has never seen.
//
// Owns: nothing. Locks: takes the GIL where said. (Python's functions are found at run time: the
// plugin is built for no Python in particular.)
#pragma once

#include <functional>

namespace firn::pytorch {

/// While it lives the thread has the GIL, and a pending Python exception is put aside: whatever
/// Python is asked meanwhile, who is unwinding finds the exception again. Where the thread has no
/// Python state, or the interpreter is ending, it does nothing, and Python must not be asked.
class PythonKept {
 public:
  PythonKept();
  ~PythonKept();
  PythonKept(const PythonKept&) = delete;
  PythonKept& operator=(const PythonKept&) = delete;
  /// May Python be asked?
  explicit operator bool() const { return taken_; }

 private:
  bool taken_ = false;
  int gil_ = 0;
  void *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

/// `work`, by which Python runs code of its own (an import, a look at a file), with the GIL held: in
/// a thread of its own where this is Python's main one, whose signal handlers run between any two
/// instructions of Python's; an exception that one raises belongs to the program and would end here.
/// The caller has a PythonKept. False: not done within two seconds (it may be waiting for a module
/// that this thread is importing), and `work`, which owns all that it uses, goes on by itself.
/// Errors: std::runtime_error, with the words of what `work` threw.
bool run_python(std::function<void()> work);

/// Calls `function` in Python's main thread, when it is between two of its own instructions: no
/// operator that Python called in C++ is under way there. False: it will not, or this is another
/// thread.
bool call_between_operators(int (*function)(void*));

}  // namespace firn::pytorch
