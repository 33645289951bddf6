// Fractions, caches, out of memory.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "allocator/memory/device_health.h"
#include "pytorch_plugin/firn_allocator.h"

namespace firn::pytorch {

namespace {

constexpr uint64_t granule_bytes = 2u << 20;  // budgets are multiples of it

struct DeviceMemory {
  size_t free_bytes = 0, total_bytes = 0;
};
DeviceMemory device_memory(c10::DeviceIndex device) {
  c10::cuda::CUDAGuard guard(device);
  DeviceMemory memory;
  C10_CUDA_CHECK(cudaMemGetInfo(&memory.free_bytes, &memory.total_bytes));
  return memory;
}

}  // namespace

double FirnAllocator::getMemoryFraction(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < device_count_,
              "Invalid device index: ", static_cast<int>(device));
  return fraction_[device];
}

void FirnAllocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < device_count_, "Allocator not initialized for device ",
              static_cast<int>(device), ": did you call init?");
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction,
              ". Please set within [0, 1].");
  fraction_[device] = fraction;
  if (Engine* engine = engine_if_open(device)) apply_fraction(*engine, device);
}

/// The fraction is of the device, as torch means it; a smaller firn_budget stays the limit.
void FirnAllocator::apply_fraction(Engine& engine, c10::DeviceIndex device) {
  const uint64_t opened = budget_bytes_[device];
  const double part = fraction_[device] * static_cast<double>(device_memory(device).total_bytes);
  uint64_t bytes = std::min(opened, static_cast<uint64_t>(part));
  bytes = std::max(bytes / granule_bytes, uint64_t{2}) * granule_bytes;
  if (bytes >= opened) bytes = opened;
  if (bytes == engine.stats().budget_bytes) return;
  Result<void> set = engine.set_budget(bytes);
  TORCH_CHECK(set, set.error().text);
}

void FirnAllocator::emptyCache(c10::MempoolId_t) {
  for (int device = 0; device < device_count_; ++device)
    if (Engine* engine = engine_if_open(static_cast<c10::DeviceIndex>(device))) engine->trim();
  log_.settle();
}

/// cuDNN's benchmarks size their workspaces by this: the memory to be had without eviction.
void FirnAllocator::cacheInfo(c10::DeviceIndex device, size_t* largest) {
  const EngineStats stats = engine(device).stats();
  const uint64_t used = std::min(stats.allocated_bytes, stats.budget_bytes);
  *largest = std::max<size_t>(*largest, stats.budget_bytes - used);
}

void FirnAllocator::attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) {
  std::lock_guard lock(mutex_);
  observers_.push_back(std::move(observer));
}

void FirnAllocator::out_of_memory(Engine& engine, size_t bytes, c10::DeviceIndex device,
                                  const Error& error) {
  // A device that an error of the program's own has ended: reported as if Firn were not there.
  if (error.code == Code::driver && DeviceHealth::stays(static_cast<CUresult>(error.detail)))
    C10_CUDA_CHECK(static_cast<cudaError_t>(error.detail));
  TORCH_CHECK(error.code == Code::out_of_memory, "firn: ", describe(error));
  engine.count_refusal();
  const EngineStats stats = engine.stats();
  const DeviceMemory memory = device_memory(device);
  // Only the rest of the budget is free for us.
  const uint64_t left = stats.budget_bytes - std::min(stats.device_bytes, stats.budget_bytes);
  const size_t free_bytes = std::min<size_t>(memory.free_bytes, left);
  if (log_.noting())
    log_.note({AllocationLog::TraceEntry::OOM, device, reinterpret_cast<void*>(free_bytes), bytes,
               c10::cuda::getCurrentCUDAStream(device).stream(), {0, 0}});
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), stats.allocated_bytes,
                                   stats.device_bytes, c10::Device(c10::kCUDA, device));
  std::vector<native::OutOfMemoryObserver> observers;
  {
    std::lock_guard lock(mutex_);
    observers = observers_;
  }
  for (const auto& observer : observers) observer(device, bytes, memory.total_bytes, free_bytes);

  using c10::CachingAllocator::format_size;
  const uint64_t unallocated =
      stats.device_bytes - std::min(stats.resident_bytes, stats.device_bytes);
  std::ostringstream words;
  words << "CUDA out of memory. Tried to allocate " << format_size(bytes) << ". GPU "
        << static_cast<int>(device) << " has a total capacity of "
        << format_size(memory.total_bytes) << " of which " << format_size(free_bytes)
        << " is free. " << format_size(stats.budget_bytes) << " allowed; Of the allocated memory "
        << format_size(stats.allocated_bytes) << " is allocated by PyTorch, and "
        << format_size(unallocated)
        << " is reserved by PyTorch but unallocated. Firn: " << error.text;
  if (Runtime* runtime = Runtime::get()) runtime->refused_memory(words.str());
  TORCH_CHECK_WITH(OutOfMemoryError, false, words.str());
}

}  // namespace firn::pytorch
