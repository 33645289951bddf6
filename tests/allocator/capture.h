// A stream under capture, from the constructor to end(). Any mode but relaxed would forbid what the
// engine does meanwhile.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "tests/allocator/simulation.h"

namespace firn::test {

class Capture {
 public:
  /// The calling thread ends it.
  Capture(Simulation& sim, CUstream stream)
      : guard_(sim.driver(), sim.context(0)), stream_(stream) {
    load(begin_, sim, "cuStreamBeginCapture_v2");
    load(end_, sim, "cuStreamEndCapture");
    load(destroy_, sim, "cuGraphDestroy");
    constexpr int relaxed = 2;
    EXPECT_EQ(begin_(stream, relaxed), CUDA_SUCCESS);
  }
  /// CUDA_SUCCESS: the capture is whole.
  CUresult end() {
    void* graph = nullptr;
    const CUresult result = end_(stream_, &graph);
    if (graph) (void)destroy_(graph);
    return result;
  }

 private:
  template <class Entry>
  static void load(Entry& entry, Simulation& sim, const char* name) {
    entry = reinterpret_cast<Entry>(::dlsym(sim.driver().handle, name));
    FIRN_CHECK(entry, "%s", name);
  }

  Driver::ContextGuard guard_;
  CUstream stream_;
  CUresult (*begin_)(CUstream, int) = nullptr;
  CUresult (*end_)(CUstream, void**) = nullptr;
  CUresult (*destroy_)(void*) = nullptr;
};

}  // namespace firn::test
