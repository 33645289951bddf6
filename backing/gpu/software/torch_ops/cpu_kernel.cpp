// One CUDA operator run by its CPU kernel; see cpu_kernel.h.
#include "backing/gpu/software/torch_ops/cpu_kernel.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>
#include <optional>

#include "backing/gpu/software/torch_ops/aliases.h"
#include "backing/gpu/software/torch_ops/generators.h"
#include "backing/gpu/software/torch_ops/scratch.h"
#include "backing/gpu/software/torch_ops/stream_work.h"

namespace firn::torch_ops {
namespace {

// Operators that take CPU tensors of any size beside CUDA ones.
constexpr const char* mixing_operators[] = {"aten::index", "aten::index_put", "aten::_index_put",
                                            "aten::_unsafe_index", "aten::_ctc_loss"};

// Finds the device of an operator's arguments and refuses what torch refuses.
class DeviceCheck {
 public:
  DeviceCheck(const c10::OperatorHandle& op, bool cpu_tensors_welcome)
      : op_(op), cpu_tensors_welcome_(cpu_tensors_welcome) {}

  void see(const c10::IValue& value, size_t argument) {
    if (value.isTensor()) {
      see(value.toTensor(), argument);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) see(tensor, argument);
    } else if (value.isOptionalTensorList()) {
      for (const auto& tensor : value.toOptionalTensorVector()) {
        if (tensor.has_value()) see(*tensor, argument);
      }
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      asked_ = value.toDevice();
    }
  }

  /// Of the CUDA tensors, else the one asked for, else the current one.
  c10::Device device() const {
    if (common_.has_value()) {
      if (cpu_argument_.has_value() && !cpu_tensors_welcome_) refuse(*cpu_argument_, "cpu");
      TORCH_CHECK(cpu_argument_ != 0, "indices should be either on cpu or on the same device as ",
                  "the indexed tensor (cpu)");
      return *common_;
    }
    if (asked_.has_value() && asked_->has_index()) return *asked_;
    return {c10::kCUDA, c10::cuda::current_device()};
  }

 private:
  void see(const at::Tensor& tensor, size_t argument) {
    if (!tensor.defined()) return;
    if (tensor.is_cuda()) {
      if (common_.has_value() && *common_ != tensor.device()) {
        refuse(argument, tensor.device().str());
      }
      common_ = tensor.device();
    } else if (tensor.is_cpu() && tensor.dim() != 0 && !cpu_argument_.has_value()) {
      cpu_argument_ = argument;
    }
  }

  [[noreturn]] void refuse(size_t argument, const std::string& device) const {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two ",
                "devices, ", common_->str(), " and ", device, "! (when checking argument ",
                op_.schema().arguments().at(argument).name(), " in method wrapper_CUDA_",
                op_.schema().name(), ")");
  }

  const c10::OperatorHandle& op_;
  bool cpu_tensors_welcome_;
  std::optional<c10::Device> common_;
  std::optional<c10::Device> asked_;
  std::optional<size_t> cpu_argument_;
};

// What must not apply to the CPU kernel, nor to the operators that it calls: autograd, autocast,
// Python modes, observers.
void run_cpu(const c10::OperatorHandle& target, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const c10::impl::ExcludeDispatchKeyGuard no_python(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  const at::DisableRecordFunctionGuard unobserved;
  const Scratch scratch;
  target.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

void enqueue_copies(const Aliases& aliases, c10::cuda::CUDAStream stream, const char* name) {
  if (aliases.copies().empty()) return;
  Addresses addresses;
  for (const Aliases::Copy& copy : aliases.copies()) {
    addresses.push_back(reinterpret_cast<uint64_t>(copy.to));
  }
  enqueue(stream.stream(), name, addresses, [copies = aliases.copies()] {
    for (const Aliases::Copy& copy : copies) std::memcpy(copy.to, copy.from.data(), copy.bytes);
  });
}

}  // namespace

CpuKernel::CpuKernel(const c10::OperatorHandle& op, const c10::OperatorHandle& target, bool draws)
    : target_(target), name_(op.schema().name()), draws_(draws) {
  for (const char* mixing : mixing_operators) {
    // index and index_put, also in their _ and out forms, but not index_add and the like
    const std::string base = name_.back() == '_' ? name_.substr(0, name_.size() - 1) : name_;
    cpu_tensors_welcome_ |= base == mixing || base == std::string(mixing) + "_impl";
  }
  if (!op.schema().overload_name().empty()) name_ += "." + op.schema().overload_name();
  const auto& arguments = op.schema().arguments();
  for (size_t index = 0; index < arguments.size(); ++index) {
    const std::string type = arguments[index].type()->str();
    if (type == "Generator" || type == "Generator?") {
      generator_argument_ = static_cast<int>(index);
      draws_ = true;
    }
  }
}

void CpuKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                           torch::jit::Stack* stack) {
  const size_t argument_count = op.schema().arguments().size();
  const size_t first = stack->size() - argument_count;
  DeviceCheck check(op, cpu_tensors_welcome_);
  for (size_t index = 0; index < argument_count; ++index) check.see((*stack)[first + index], index);
  const c10::Device device = check.device();
  const c10::cuda::CUDAGuard guard(device);
  C10_CUDA_CHECK(cudaSetDevice(device.index()));  // the thread may have no context yet
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device.index());

  Aliases aliases;
  torch::jit::Stack cpu_stack;
  cpu_stack.reserve(argument_count + 2);
  for (size_t index = 0; index < argument_count; ++index) {
    cpu_stack.push_back(aliases.to_cpu((*stack)[first + index]));
  }
  const auto run = [&] {
    if (aliases.addresses().empty()) {
      run_cpu(target_, &cpu_stack);
    } else {
      hold_stream(stream.stream(), name_.c_str(), aliases.addresses(),
                  [&] { run_cpu(target_, &cpu_stack); });
    }
  };
  if (draws_) {
    at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device.index());
    if (generator_argument_ >= 0) {
      const c10::IValue& given = (*stack)[first + generator_argument_];
      if (!given.isNone()) generator = given.toGenerator();
      TORCH_CHECK(generator.device().is_cuda(),
                  "Expected a 'cuda' device type for generator but found '",
                  generator.device().type(), "'");
    }
    with_cpu_generator(generator, [&](const at::Generator& cpu) {
      if (generator_argument_ >= 0) cpu_stack[generator_argument_] = cpu;
      run();
    });
  } else {
    run();
  }

  aliases.put_back(device);
  torch::jit::drop(*stack, argument_count);
  for (const c10::IValue& value : cpu_stack) stack->push_back(aliases.to_cuda(value, device));
  enqueue_copies(aliases, stream, name_.c_str());
}

void RefusedKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                               torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "firn software device: no kernel for ",
                              toString(op.operator_name()));
}

}  // namespace firn::torch_ops
