// copy_ and _foreach_copy_; see copies.h.
//
// Between host and device torch's own copy does the work: it makes both sides contiguous, then
// calls cudaMemcpyAsync, and waits for the stream or, where non_blocking, tells the pinned host
// allocator of the use. Within a device, a plain copy is torch's own too (a copy in stream order);
// one that converts or permutes is an operator like any other.
#include "backing/gpu/software/torch_ops/copies.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include "backing/gpu/software/torch_ops/cpu_kernel.h"

namespace firn::torch_ops {
namespace {

bool plain(const at::Tensor& to, const at::Tensor& from) {
  return to.scalar_type() == from.scalar_type() && to.is_conj() == from.is_conj() &&
         to.is_neg() == from.is_neg() && to.sizes() == from.sizes() && to.is_contiguous() &&
         from.is_contiguous();
}

void copy_as_operator(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  static auto* const kernel = [] {
    auto* const made = new CpuKernel(op, op);
    made->set_cpu_tensors_welcome();
    return made;
  }();
  torch::jit::Stack stack{to, from, non_blocking};
  (*kernel)(op, c10::DispatchKeySet(c10::DispatchKey::CUDA), &stack);
}

at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (operators_registered.load(std::memory_order_relaxed)) add_late_operators();
  if (to.is_same(from)) return to;
  const at::Tensor& on_device = to.is_cuda() ? to : from;
  if (c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None) {
    TORCH_CHECK(
        non_blocking || (to.is_cuda() && from.is_cuda()),
        "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU ",
        "tensor is pinned and the copy non-blocking");
    TORCH_CHECK(to.device() == from.device() || !to.is_cuda() || !from.is_cuda(),
                "firn software device: a copy from ", from.device(), " to ", to.device(),
                " under stream capture");
    const c10::cuda::OptionalCUDAGuard guard(on_device.device());
    copy_as_operator(to, from, non_blocking);
    return to;
  }
  const bool both_cuda = to.is_cuda() && from.is_cuda();
  if (both_cuda && to.device() == from.device()) {
    if (plain(to, from)) return at::native::copy_(to, from, non_blocking);
    copy_as_operator(to, from, non_blocking);
    return to;
  }
  if (both_cuda && !plain(to, from)) {
    // Between two GPUs torch would launch a kernel that reaches into the peer.
    const at::Tensor source = from.to(to.scalar_type()).expand_as(to).contiguous();
    at::Tensor there = to.is_contiguous() ? to : at::empty_like(to, at::MemoryFormat::Contiguous);
    there._set_conj(source.is_conj());
    there._set_neg(source.is_neg());
    at::native::copy_(there, source, non_blocking);
    if (!there.is_same(to)) to.copy_(there, non_blocking);
    return to;
  }
  return at::native::copy_(to, from, non_blocking);
}

void foreach_copy_(at::TensorList to, at::TensorList from, bool non_blocking) {
  TORCH_CHECK(to.size() == from.size(), "Tensor lists must have the same number of tensors, got ",
              to.size(), " and ", from.size());
  for (size_t index = 0; index < to.size(); ++index) to[index].copy_(from[index], non_blocking);
}

}  // namespace

void register_copies(torch::Library& library) {
  library.impl("copy_", TORCH_FN(copy_));
  library.impl("_foreach_copy_", TORCH_FN(foreach_copy_));
}

}  // namespace firn::torch_ops
