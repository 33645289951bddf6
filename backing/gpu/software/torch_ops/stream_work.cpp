// Host work in stream order; see stream_work.h.
#include "backing/gpu/software/torch_ops/stream_work.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include "firn/software_gpu.h"

namespace firn::torch_ops {
namespace {

// A launch carries at most this many addresses; more go into launches before it.
constexpr size_t addresses_max = 480;

struct Gpu {
  decltype(&::cuLaunchKernel) launch_kernel = nullptr;
  decltype(&::cudaGetLastError) last_error = nullptr;  // the runtime's
  decltype(&::cuStreamQuery) stream_query = nullptr;
  decltype(&::cuStreamGetCaptureInfo_v3) capture_info = nullptr;
  decltype(&::cuGetErrorName) get_error_name = nullptr;
  decltype(&::cuGetErrorString) get_error_string = nullptr;
  decltype(&::firnGpuKernelCreate) kernel_create = nullptr;
};
Gpu gpu;

// Work that a kernel's first parameter points at. Two references: the launching thread's and the
// kernel's; the last one out deletes it.
struct Work {
  enum class Phase { queued, reached, done };

  std::function<void()> function;  // enqueue(): run by the kernel. Empty for hold_stream().
  bool captured = false;
  std::atomic<int> references{2};
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<Phase> phase{Phase::queued};

  void enter(Phase next) {
    {
      const std::lock_guard lock(mutex);
      phase.store(next, std::memory_order_release);
    }
    changed.notify_all();
  }
  void release() {
    if (references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

constexpr auto check_interval = std::chrono::milliseconds(200);
constexpr int spins = 60;  // about as long as a wake-up takes

bool spin_until(const Work& work, Work::Phase wanted) {
  for (int spin = 0; spin < spins; ++spin) {
    if (work.phase.load(std::memory_order_acquire) == wanted) return true;
    __builtin_ia32_pause();
  }
  return false;
}

void run_work(void** params, const unsigned*, const unsigned*) {
  auto* work = *static_cast<Work**>(params[0]);
  if (work == nullptr) return;  // a carrier of addresses
  if (work->function) {
    work->function();
    if (!work->captured) work->release();
    return;
  }
  work->enter(Work::Phase::reached);
  if (!spin_until(*work, Work::Phase::done)) {
    std::unique_lock lock(work->mutex);
    work->changed.wait(lock, [&] { return work->phase.load() == Work::Phase::done; });
  }
  work->release();
}

[[noreturn]] void fail(const std::string& entry, int result, const char* name) {
  const char *error = nullptr, *words = nullptr;
  if (gpu.get_error_name(static_cast<CUresult>(result), &error) != CUDA_SUCCESS) error = nullptr;
  if (gpu.get_error_string(static_cast<CUresult>(result), &words) != CUDA_SUCCESS) words = nullptr;
  throw std::runtime_error(entry + " for " + name + ": " +
                           (error != nullptr ? error : std::to_string(result)) +
                           (words != nullptr ? std::string(" (") + words + ")" : ""));
}

// Kernels by name and number of addresses (rounded up to limit their number).
CUfunction kernel_of(const char* name, size_t addresses) {
  static std::mutex mutex;
  static auto* const kernels = new std::map<std::pair<std::string, size_t>, CUfunction>;
  const std::lock_guard lock(mutex);
  CUfunction& kernel = (*kernels)[{name, addresses}];
  if (kernel != nullptr) return kernel;
  std::vector<std::array<unsigned, 2>> layout;
  for (size_t index = 0; index <= addresses; ++index) {
    layout.push_back({static_cast<unsigned>(8 * index), 8});
  }
  layout.push_back({0, 0});
  void* made = nullptr;
  const int result = gpu.kernel_create(
      name, run_work, reinterpret_cast<const unsigned(*)[2]>(layout.data()), &made);
  if (result != 0) fail("firnGpuKernelCreate", result, name);
  kernel = static_cast<CUfunction>(made);
  return kernel;
}

void launch_one(Stream stream, const char* name, const uint64_t* addresses, size_t count,
                Work* work) {
  size_t room = 1;
  while (room < count) room *= 2;
  std::vector<uint64_t> values(room + 1, 0);
  values[0] = reinterpret_cast<uint64_t>(work);
  std::copy(addresses, addresses + count, values.begin() + 1);
  std::vector<void*> params(room + 1);
  for (size_t index = 0; index <= room; ++index) params[index] = &values[index];
  const CUresult result = gpu.launch_kernel(kernel_of(name, room), 1, 1, 1, 1, 1, 1, 0,
                                            static_cast<CUstream>(stream), params.data(), nullptr);
  if (result != CUDA_SUCCESS) fail("cuLaunchKernel", result, name);
}

/// Some of PyTorch's operators do not check their launches: if one launched a kernel that is not
/// here, nothing goes on with its unwritten results.
void check_kernels_before(const char* name) {
  if (!gpu.last_error || gpu.last_error() != cudaErrorNotSupported) return;
  throw std::runtime_error(std::string("before ") + name +
                           ": the operator before it launched a GPU kernel that the software "
                           "device lacks (named above)");
}

void launch(Stream stream, const char* name, const Addresses& addresses, Work* work) {
  check_kernels_before(name);
  size_t begin = 0;
  for (; addresses.size() - begin > addresses_max; begin += addresses_max) {
    launch_one(stream, name, addresses.data() + begin, addresses_max, nullptr);
  }
  launch_one(stream, name, addresses.data() + begin, addresses.size() - begin, work);
}

void wait_until_reached(Work& work, Stream stream, const char* name) {
  if (spin_until(work, Work::Phase::reached)) return;
  std::unique_lock lock(work.mutex);
  const auto reached = [&] { return work.phase.load() == Work::Phase::reached; };
  while (!work.changed.wait_for(lock, check_interval, reached)) {
    // A stream that has met an error never reaches the kernel.
    lock.unlock();
    const CUresult state = gpu.stream_query(static_cast<CUstream>(stream));
    lock.lock();
    if (state != CUDA_SUCCESS && state != CUDA_ERROR_NOT_READY) {
      fail("the stream", state, name);  // `work` stays: the kernel may still be queued
    }
  }
}

}  // namespace

void open_software_gpu() {
  if (gpu.kernel_create != nullptr) return;
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto find = [&](const char* name) {
    void* const found = dlsym(library, name);
    if (found == nullptr) {
      throw std::runtime_error(std::string(name) + " is missing: libcuda.so.1 is not the " +
                               "software GPU");
    }
    return found;
  };
  Gpu found;
  found.launch_kernel = reinterpret_cast<decltype(found.launch_kernel)>(find("cuLaunchKernel"));
  found.stream_query = reinterpret_cast<decltype(found.stream_query)>(find("cuStreamQuery"));
  found.capture_info =
      reinterpret_cast<decltype(found.capture_info)>(find("cuStreamGetCaptureInfo_v3"));
  found.get_error_name = reinterpret_cast<decltype(found.get_error_name)>(find("cuGetErrorName"));
  found.get_error_string =
      reinterpret_cast<decltype(found.get_error_string)>(find("cuGetErrorString"));
  found.kernel_create =
      reinterpret_cast<decltype(found.kernel_create)>(find("firnGpuKernelCreate"));
  if (void* runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD)) {
    found.last_error =
        reinterpret_cast<decltype(found.last_error)>(dlsym(runtime, "cudaGetLastError"));
    dlclose(runtime);
  }
  gpu = found;
}

void hold_stream(Stream stream, const char* name, const Addresses& addresses,
                 const std::function<void()>& function) {
  auto* const work = new Work;
  try {
    launch(stream, name, addresses, work);
  } catch (...) {
    delete work;
    throw;
  }
  wait_until_reached(*work, stream, name);
  struct Done {
    Work* work;
    ~Done() {
      work->enter(Work::Phase::done);
      work->release();
    }
  } const done{work};
  function();
}

void enqueue(Stream stream, const char* name, const Addresses& addresses,
             std::function<void()> function) {
  auto* const work = new Work;
  work->references = 1;
  work->function = std::move(function);
  work->captured = capture_of(stream) != 0;
  try {
    launch(stream, name, addresses, work);
  } catch (...) {
    delete work;
    throw;
  }
}

uint64_t capture_of(Stream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t capture = 0;
  const CUresult result = gpu.capture_info(static_cast<CUstream>(stream), &status, &capture,
                                           nullptr, nullptr, nullptr, nullptr);
  if (result != CUDA_SUCCESS) fail("cuStreamGetCaptureInfo", result, "the stream");
  return status == CU_STREAM_CAPTURE_STATUS_NONE ? 0 : capture;
}

}  // namespace firn::torch_ops
