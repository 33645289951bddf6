// RMM's pool behind three functions, for calls.cpp. Built by firn_bench/peers.py where RMM could be
// installed.
#include <rmm/cuda_stream_view.hpp>
#include <rmm/mr/device/cuda_memory_resource.hpp>
#include <rmm/mr/device/pool_memory_resource.hpp>

#include <memory>
#include <string>

#define BENCH_API extern "C" __attribute__((visibility("default")))

namespace {
rmm::mr::cuda_memory_resource driver;
std::unique_ptr<rmm::mr::pool_memory_resource<rmm::mr::cuda_memory_resource>> pool;
std::string why;
}  // namespace

/// Null, or why there is no pool of so many bytes.
BENCH_API const char* rmm_begin(size_t bytes) {
  try {
    pool = std::make_unique<rmm::mr::pool_memory_resource<rmm::mr::cuda_memory_resource>>(&driver,
                                                                                          bytes);
  } catch (const std::exception& error) {
    why = error.what();
    return why.c_str();
  }
  return nullptr;
}
BENCH_API void* rmm_take(size_t bytes, void* stream) {
  return pool->allocate_async(bytes, rmm::cuda_stream_view(static_cast<cudaStream_t>(stream)));
}
BENCH_API void rmm_give(void* pointer, size_t bytes, void* stream) {
  pool->deallocate_async(pointer, bytes, rmm::cuda_stream_view(static_cast<cudaStream_t>(stream)));
}
