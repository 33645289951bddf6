// Differences between the releases of torch that the plugin can be built against (2.11 to 2.15).
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

#include <functional>
#include <memory>
#include <string>

#define FIRN_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||       \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace firn::pytorch {

namespace native = c10::cuda::CUDACachingAllocator;

/// A CUDA allocator as the newest of these releases asks for one. Functions that the torch at hand
/// lacks are declared here, and never called.
class CudaAllocatorOfAllReleases : public native::CUDAAllocator {
#if !FIRN_TORCH_AT_LEAST(2, 12)
 public:
  using OomRejectionObserver = std::function<void(int64_t, size_t, size_t, size_t)>;
  virtual void attachOomRejectionObserver(OomRejectionObserver observer) = 0;
  virtual std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* pointer) = 0;
#else
 protected:
  using OomRejectionObserver = native::OomRejectionObserver;
#endif
#if !FIRN_TORCH_AT_LEAST(2, 14)
 public:
  virtual bool supportsUserMetadata() = 0;
  virtual void annotateMemory(const void* pointer, const std::string& words) = 0;
#endif
};

}  // namespace firn::pytorch
