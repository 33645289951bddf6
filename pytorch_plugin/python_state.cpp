#include "pytorch_plugin/python_state.h"

#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <future>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "firn/ranked_mutex.h"
#include "firn/signals_blocked.h"

namespace firn::pytorch {

namespace {

constexpr std::chrono::seconds python_most{2};

struct Python {
  int (*is_initialized)() = nullptr;
  int (*is_finalizing)() = nullptr;
  void* (*this_thread_state)() = nullptr;
  int (*ensure)() = nullptr;
  void (*release)(int) = nullptr;
  void (*fetch)(void**, void**, void**) = nullptr;
  void (*restore)(void*, void*, void*) = nullptr;
  int (*add_pending)(int (*)(void*), void*) = nullptr;
  void* (*save_thread)() = nullptr;
  void (*restore_thread)(void*) = nullptr;
  bool whole() const {
    return is_initialized && is_finalizing && this_thread_state && ensure && release && fetch &&
           restore && add_pending && save_thread && restore_thread;
  }
};

template <class Function>
void find(Function& to, const char* name, const char* otherwise = nullptr) {
  void* found = ::dlsym(RTLD_DEFAULT, name);
  if (!found && otherwise) found = ::dlsym(RTLD_DEFAULT, otherwise);
  to = reinterpret_cast<Function>(found);
}

const Python& python() {
  static const Python found = [] {
    Python p;
    find(p.is_initialized, "Py_IsInitialized");
    find(p.is_finalizing, "Py_IsFinalizing", "_Py_IsFinalizing");  // public as of 3.13
    find(p.this_thread_state, "PyGILState_GetThisThreadState");
    find(p.ensure, "PyGILState_Ensure");
    find(p.release, "PyGILState_Release");
    find(p.fetch, "PyErr_Fetch");
    find(p.restore, "PyErr_Restore");
    find(p.add_pending, "Py_AddPendingCall");
    find(p.save_thread, "PyEval_SaveThread");
    find(p.restore_thread, "PyEval_RestoreThread");
    return p;
  }();
  return found;
}

/// A thread that asks for the GIL once the interpreter is ending does not come back.
bool reachable() {
  const Python& p = python();
  return p.whole() && p.is_initialized() && !p.is_finalizing();
}

bool in_main_thread() { return ::getpid() == ::gettid(); }

}  // namespace

PythonKept::PythonKept() {
  if (!reachable() || !python().this_thread_state()) return;
  none_held("the GIL");
  gil_ = python().ensure();
  python().fetch(&type_, &value_, &traceback_);
  taken_ = true;
}

PythonKept::~PythonKept() {
  if (!taken_) return;
  python().restore(type_, value_, traceback_);
  python().release(gil_);
}

bool run_python(std::function<void()> work) {
  const auto run = [work = std::move(work)] {
    none_held("the GIL");
    const int gil = python().ensure();
    std::string error;
    bool failed = false;
    try {
      work();
    } catch (const std::exception& e) {  // (Python's own ends here, with the GIL held)
      failed = true;
      error = e.what();
    }
    python().release(gil);
    if (failed) throw std::runtime_error(error);
  };
  if (!in_main_thread()) {
    run();
    return true;
  }
  std::packaged_task<void()> task(run);
  std::future<void> done = task.get_future();
  void* const thread_state = python().save_thread();
  bool in_time = false;
  try {
    {
      SignalsBlocked blocked;
      std::thread(std::move(task)).detach();
    }
    in_time = done.wait_for(python_most) == std::future_status::ready;
  } catch (const std::system_error&) {  // no thread could be started: no line
  }
  python().restore_thread(thread_state);
  if (in_time) done.get();
  return in_time;
}

bool call_between_operators(int (*function)(void*)) {
  return in_main_thread() && reachable() && python().this_thread_state() &&
         python().add_pending(function, nullptr) == 0;
}

}  // namespace firn::pytorch
