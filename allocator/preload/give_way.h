// Driver calls that need device memory of the driver's own: modules, streams, graphs, first
// launches, memory of others. Where there is none left, blocks give way, and the call is made once
// more.
//
// Called without Firn's locks; the driver itself is called by handlers only, so nothing comes back
// here. A call that fails again leaves the budget as it was.
#pragma once

#include "allocator/preload/work.h"

namespace firn::preload {

class GaveWay {
 public:
  /// `what` lacked memory on the current context's device, or on `device`. `bytes`: its need as far
  /// as known. This thread holds no work.
  GaveWay(const char* what, uint64_t bytes, int device);
  explicit operator bool() const { return given_ > 0; }
  /// How the second call ended.
  void end(CUresult result);

 private:
  const char* what_;
  Engine* engine_ = nullptr;
  uint64_t before_ = 0;  // the budget
  uint64_t given_ = 0;
};

/// Makes the call; if the driver has no memory for it, makes it once more after blocks gave way.
/// `work`: held for the call, and released meanwhile, since its blocks may be the ones to leave.
template <class Call>
CUresult or_give_way(const char* what, Call&& call, Work* work = nullptr, uint64_t bytes = 0,
                     int device = -1) {
  CUresult result = call();
  if (result != CUDA_ERROR_OUT_OF_MEMORY) [[likely]] return result;
  if (work) work->release(false);
  GaveWay gave(what, bytes, device);
  if (work && work->hold(true) != CUDA_SUCCESS) return result;
  if (!gave) return result;
  result = call();
  gave.end(result);
  return result;
}

}  // namespace firn::preload
