// The software CUDA runtime: kernels compiled for a GPU. None can run, so every launch is refused
// and named, except torch's spin kernel, which only takes time. Owns the registered kernels' names
// and each thread's pushed launch configurations.
//
// The compiler's stubs call the __cuda* functions; their shapes are those of crt/host_runtime.h.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backing/gpu/software/cudart/runtime.h"

using namespace firn::cudart;

namespace {

// Host stub -> device name. Tens of thousands are registered when torch is loaded and hardly one is
// ever asked for: appended as they come, sorted when the first one is launched.
struct Registry {
  std::mutex mutex;
  std::vector<std::pair<const void*, const char*>> kernels;
  bool sorted = false;
};

Registry& registry() {
  static auto* const kernels = new Registry;
  return *kernels;
}

std::string kernel_name(const void* stub) {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  if (!known.sorted) std::sort(known.kernels.begin(), known.kernels.end());
  known.sorted = true;
  const auto found = std::lower_bound(known.kernels.begin(), known.kernels.end(),
                                      std::pair<const void*, const char*>(stub, nullptr));
  return found != known.kernels.end() && found->first == stub ? found->second : "a kernel";
}

// torch.cuda._sleep: spin_kernel(int64_t cycles), in clock cycles of the device.
cudaError_t spin(void** arguments, cudaStream_t stream) {
  int64_t cycles = 0;
  std::memcpy(&cycles, arguments[0], sizeof cycles);
  const cudaError_t entered = enter();
  if (entered != cudaSuccess) return entered;
  int device = 0;
  int clock_khz = 0;
  const cudaError_t error = current_device(&device);
  if (error != cudaSuccess) return error;
  if (driver().cuDeviceGetAttribute(&clock_khz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, device) !=
          CUDA_SUCCESS ||
      clock_khz <= 0) {
    clock_khz = 1'000'000;
  }
  const double ns = static_cast<double>(std::max<int64_t>(cycles, 0)) * 1e6 / clock_khz;
  return static_cast<cudaError_t>(driver().busy(stream, static_cast<unsigned long>(ns)));
}

cudaError_t launch(const void* stub, void** arguments, cudaStream_t stream) {
  const std::string name = kernel_name(stub);
  if (driver().busy != nullptr && name.find("spin_kernel") != std::string::npos) {
    return keep(spin(arguments, stream));
  }
  return keep(not_supported(("the GPU kernel " + name).c_str()));
}

struct Configuration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

}  // namespace

// clang-format off
#pragma GCC diagnostic ignored "-Wmissing-declarations"
// clang-format on
extern "C" {

void** __cudaRegisterFatBinary(void* image) {
  return new void*(image);  // a handle of its own; given back by __cudaUnregisterFatBinary
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void** handle) { delete handle; }
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, void*, void*,
                            void*, void*, int*) {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  known.kernels.emplace_back(stub, name);
  known.sorted = false;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterHostVar(void**, const char*, char*, size_t) {}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     cudaStream_t stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  if (configurations.empty()) return keep(cudaErrorMissingConfiguration);
  const Configuration& top = configurations.back();
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  configurations.pop_back();
  return cudaSuccess;
}

// A kernel handle is its stub's address.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void** arguments, size_t,
                               cudaStream_t stream) {
  return launch(kernel, arguments, stream);
}
cudaError_t cudaLaunchKernel(const void* stub, dim3, dim3, void** arguments, size_t,
                             cudaStream_t stream) {
  return launch(stub, arguments, stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void* stub, dim3, dim3, void** arguments, size_t,
                                        cudaStream_t stream) {
  return launch(stub, arguments, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub,
                                void** arguments) {
  return launch(stub, arguments, config->stream);
}

}  // extern "C"
