#include "pytorch_plugin/uncached.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/util/env.h>
#include <cuda_runtime_api.h>

namespace firn::pytorch {

bool uncached() {
  static const bool asked = c10::utils::has_env("PYTORCH_NO_CUDA_MEMORY_CACHING");
  return asked;
}

c10::DataPtr allocate_uncached(Engine* engine, size_t bytes, c10::DeviceIndex device) {
  void* pointer = nullptr;
  if (bytes > 0) {
    cudaError_t status = cudaMalloc(&pointer, bytes);
    if (status == cudaErrorMemoryAllocation && engine) {
      (void)cudaGetLastError();
      engine->trim();
      status = cudaMalloc(&pointer, bytes);
    }
    C10_CUDA_CHECK(status);
    if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace()) [[unlikely]]
      (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
  }
  return {pointer, pointer, delete_uncached, c10::Device(c10::kCUDA, device)};
}

void delete_uncached(void* pointer) {
  if (!pointer) return;
  if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace()) [[unlikely]]
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
  // At exit the driver may be gone before the tensor.
  const cudaError_t status = cudaFree(pointer);
  if (status == cudaErrorCudartUnloading) return;
  C10_CUDA_CHECK(status);
}

}  // namespace firn::pytorch
