// Workspaces of matrix products; see workspaces.h.
#include "backing/gpu/software/torch_ops/workspaces.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>

namespace firn::torch_ops {
namespace {

constexpr const char* products[] = {"aten::mm",    "aten::addmm",   "aten::_addmm_activation",
                                    "aten::bmm",   "aten::baddbmm", "aten::addbmm",
                                    "aten::addmv", "aten::mv"};

size_t workspace_bytes() {
  static const size_t bytes = [] {
    const char* const words = std::getenv("FIRN_GPU_WORKSPACE");
    if (words == nullptr) return size_t{0};
    char* end = nullptr;
    const size_t value = std::strtoull(words, &end, 10);
    TORCH_CHECK(end != words && *end == 0, "FIRN_GPU_WORKSPACE=", words,
                " is not a number of bytes");
    return value;
  }();
  return bytes;
}

}  // namespace

bool has_workspace(const std::string& op) {
  return workspace_bytes() > 0 && std::find(std::begin(products), std::end(products), op) !=
                                      std::end(products);
}

uint64_t workspace_of(c10::cuda::CUDAStream stream) {
  static std::mutex mutex;
  static auto* const kept = new std::map<cudaStream_t, c10::DataPtr>;  // outlives every tensor
  void* memory = nullptr;
  {
    const std::lock_guard lock(mutex);
    c10::DataPtr& workspace = (*kept)[stream.stream()];
    if (!workspace) workspace = c10::cuda::CUDACachingAllocator::get()->allocate(workspace_bytes());
    memory = workspace.get();
  }
  const cudaError_t result = cudaMemsetAsync(memory, 0, 4, stream.stream());
  TORCH_CHECK(result == cudaSuccess,
              "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when setting a workspace: ",
              cudaGetErrorString(result));
  return reinterpret_cast<uint64_t>(memory);
}

}  // namespace firn::torch_ops
