// Device memory that the driver takes for itself (FIRN_GPU_OWN), as a GPU's does: for modules, for
// a kernel's first launch, for streams and graphs. Lock: Gpu::mutex.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "abi.h"

namespace firn::software {

/// How much of it each kind of object takes.
struct OwnNeeds {
  uint64_t module = 0, launch = 0, stream = 0, graph = 0;
};
/// From the environment. Empty, or what was wrong.
std::string read_own_needs(OwnNeeds& needs);

/// One object's part of it.
class Own {
 public:
  /// CUDA_ERROR_OUT_OF_MEMORY where the device has less: nothing is taken then.
  CUresult take(int device, uint64_t bytes);
  void give_back();

 private:
  std::vector<std::pair<int, uint64_t>> taken_;  // by device
};

}  // namespace firn::software
