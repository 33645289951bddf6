#include "pytorch_plugin/storage_callers.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/cuda/Resize.h>
#include <c10/core/StorageImpl.h>

#include <array>
#include <atomic>
#include <mutex>

namespace firn::pytorch {

namespace {

std::array<std::atomic<const void*>, 8> callers{};

/// Returns no memory, and notes the caller.
class Noting final : public c10::Allocator {
 public:
  __attribute__((noinline)) c10::DataPtr allocate(size_t) override {
    note(__builtin_return_address(0));
    return {nullptr, nullptr, c10::detail::deleteNothing, c10::Device(c10::kCUDA, 0)};
  }
  void copy_data(void*, const void*, size_t) const override {}

 private:
  static void note(const void* caller) {
    for (auto& known : callers) {
      const void* const before = known.load(std::memory_order_relaxed);
      if (before == caller) return;
      if (before) continue;
      known.store(caller, std::memory_order_release);
      return;
    }
  }
};

}  // namespace

void learn_storage_callers(int device) {
  static std::once_flag once;
  std::call_once(once, [device] {
    static Noting noting;  // (storages name their allocator)
    const c10::DispatchKeySet cuda(c10::DispatchKey::CUDA);
    const int64_t size[] = {16}, stride[] = {1};
    // Tensors' storages as kernels make them, those of Python and of files, and those that grow.
    (void)at::detail::empty_generic(size, &noting, cuda, c10::kByte, std::nullopt);
    (void)at::detail::empty_strided_generic(size, stride, &noting, cuda, c10::kByte);
    const c10::Device there(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
    (void)c10::make_storage_impl(c10::StorageImpl::use_byte_size_t(), 16, c10::DataPtr(), &noting,
                                 true, there);
    auto grown = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), 0, c10::DataPtr(nullptr, there), &noting, true);
    at::native::resize_bytes_cuda(grown.get(), 16);
  });
}

bool makes_storage(const void* caller) {
  for (const auto& known : callers) {
    const void* const address = known.load(std::memory_order_relaxed);
    if (!address) return false;
    if (address == caller) return true;
  }
  return false;
}

}  // namespace firn::pytorch
