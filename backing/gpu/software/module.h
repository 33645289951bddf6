// Modules and functions: software kernels, from shared objects or given as host functions. Owned by
// their tables, and by the work that runs them. Lock: Gpu::mutex.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu.h"

namespace firn::software {

struct Function {
  uint64_t handle = 0;
  std::string name;
  FirnGpuKernel run = nullptr;
  std::vector<int> launched;     // devices
  std::vector<std::pair<unsigned, unsigned>> layout;  // (offset, size) of each parameter
  size_t packed_bytes = 0;
  Own own;                       // of its first launch on each device, without a module
  std::weak_ptr<Module> module;  // of this context's module, or of a library: any context's
};

/// A shared object. Its code stays mapped as long as a function of it may still run.
struct Module {
  uint64_t handle = 0;
  void* library = nullptr;
  int fd = -1;                   // of an image: its name for the loader is unique while it is open
  std::weak_ptr<Context> context;  // empty for a library
  bool of_library = false;
  std::vector<std::pair<std::string, uint64_t>> functions;  // handles given out, by name
  Own own;                                                  // its kernels' too
  std::vector<uint64_t> variables;                          // addresses given out
  ~Module();
};

/// The layout as `pairs`, ended by {0, 0}; null is none.
bool take_layout(Function& function, const unsigned (*pairs)[2]);

/// Called before a launch on the device: takes what the driver needs for the first one there.
CUresult load_for_launch(Function& function, int device);

/// A function's handle from a module's symbol; 0 when there is none.
uint64_t function_of(const std::shared_ptr<Module>& module, const std::string& name);

}  // namespace firn::software
