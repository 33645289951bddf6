// One CUDA operator run by its CPU kernel, over the same bytes.
//
// A boxed kernel for DispatchKey::CUDA or SparseCUDA: it makes CPU tensors over the bytes of the
// CUDA ones, runs the operator's CPU kernel when the current stream reaches it, gives back the
// original tensor where an argument was returned, and copies new results into memory of the CUDA
// allocator in stream order. Owns what it knows of its operator; needs no lock.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <string>
#include <vector>

namespace firn::torch_ops {

class CpuKernel final : public c10::OperatorKernel {
 public:
  /// Runs `target`'s CPU kernel in the place of `op`'s: `op` itself, or a composition of the same
  /// schema.
  CpuKernel(const c10::OperatorHandle& op, const c10::OperatorHandle& target,
            c10::DispatchKey key = c10::DispatchKey::CPU);

  /// It draws random numbers without a Generator among its arguments.
  void set_draws() { draws_ = true; }
  /// It takes CPU tensors of any size beside CUDA ones.
  void set_cpu_tensors_welcome() { cpu_tensors_welcome_ = true; }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  struct Call;

  void run(Call& call) const;
  void run_drawing(Call& call) const;
  void run_captured(Call& call) const;
  void finish(Call& call, torch::jit::Stack* stack) const;

  c10::OperatorHandle target_;
  c10::DispatchKey key_;  // of the kernel that runs: CPU or SparseCPU
  std::string name_;
  std::vector<size_t> written_arguments_;
  int generator_argument_ = -1;
  bool draws_ = false;
  bool has_workspace_ = false;
  bool cpu_tensors_welcome_ = false;
};

/// Operators may be registered late, by a library such as torchvision: set when one was.
extern std::atomic<bool> operators_registered;
/// Puts CPU kernels in the place of their CUDA kernels too, where they have both.
void add_late_operators();

/// Refuses an operator by name: NotImplementedError.
class RefusedKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);
};

}  // namespace firn::torch_ops
