// One CUDA operator run by its CPU kernel; see cpu_kernel.h.
#include "backing/gpu/software/torch_ops/cpu_kernel.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "backing/gpu/software/torch_ops/aliases.h"
#include "backing/gpu/software/torch_ops/capture.h"
#include "backing/gpu/software/torch_ops/generators.h"
#include "backing/gpu/software/torch_ops/scratch.h"
#include "backing/gpu/software/torch_ops/stream_work.h"
#include "backing/gpu/software/torch_ops/threads.h"
#include "backing/gpu/software/torch_ops/workspaces.h"

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

  /// The CUDA tensors' device, else the one asked for, else the current one.
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

// Keeps autograd, autocast, Python modes and observers from the CPU kernel, and from the operators
// that it calls.
void run_cpu(const c10::OperatorHandle& target, c10::DispatchKey key, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const c10::impl::ExcludeDispatchKeyGuard no_python(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  const at::DisableRecordFunctionGuard unobserved;
  const Scratch scratch;
  use_followed_threads();
  target.redispatchBoxed(c10::DispatchKeySet(key), stack);
}

void copy_all(const std::vector<Aliases::Copy>& copies) {
  for (const Aliases::Copy& copy : copies) std::memcpy(copy.to, copy.from.data(), copy.bytes);
}

// The storages of the tensors in `values`, in their order.
std::vector<c10::Storage> storages_in(const torch::jit::Stack& values) {
  std::vector<c10::Storage> storages;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined()) storages.push_back(tensor.storage());
  };
  for (const c10::IValue& value : values) {
    if (value.isTensor()) add(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
    }
  }
  return storages;
}

// A captured operator, run again: its new results go where the first ones went.
class Replay {
 public:
  Replay(const c10::OperatorHandle& target, c10::DispatchKey key, std::string name,
         torch::jit::Stack arguments,
         const torch::jit::Stack& results, const std::vector<Aliases::Copy>& copies)
      : target_(target), key_(key), name_(std::move(name)), arguments_(std::move(arguments)) {
    for (const c10::Storage& storage : storages_in(results)) {
      Destination destination{nullptr, 0};
      for (const Aliases::Copy& copy : copies) {
        if (copy.from.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) {
          destination = {copy.to, copy.bytes};
        }
      }
      destinations_.push_back(destination);
    }
  }

  void operator()() const {
    try {
      torch::jit::Stack stack = arguments_;
      run_cpu(target_, key_, &stack);
      const auto storages = storages_in(stack);
      TORCH_CHECK(storages.size() == destinations_.size(), "another number of results");
      for (size_t index = 0; index < destinations_.size(); ++index) {
        if (destinations_[index].to == nullptr) continue;
        TORCH_CHECK(storages[index].nbytes() == destinations_[index].bytes,
                    "another size of results");
        std::memcpy(destinations_[index].to, storages[index].data(), destinations_[index].bytes);
      }
    } catch (const std::exception& error) {
      // As on a GPU, where an assertion in a kernel loses the context: nothing later can be right.
      std::fprintf(stderr, "firn software device: %s in a graph's replay: %s\n", name_.c_str(),
                   error.what());
      std::abort();
    }
  }

 private:
  struct Destination {  // of one result
    void* to;  // null for an argument or a view of one
    size_t bytes;
  };

  c10::OperatorHandle target_;
  c10::DispatchKey key_;
  std::string name_;
  torch::jit::Stack arguments_;
  std::vector<Destination> destinations_;
};

}  // namespace

// One call: the caller's arguments, their CPU versions, and where it runs.
struct CpuKernel::Call {
  at::ArrayRef<c10::IValue> arguments;
  c10::cuda::CUDAStream stream;
  uint64_t capture;
  uint64_t workspace;  // 0: none
  Aliases aliases;
  torch::jit::Stack cpu_stack;      // arguments, then results
  torch::jit::Stack cpu_arguments;  // kept where it is captured
};

CpuKernel::CpuKernel(const c10::OperatorHandle& op, const c10::OperatorHandle& target,
                     c10::DispatchKey key)
    : target_(target), key_(key), name_(op.schema().name()), has_workspace_(has_workspace(name_)) {
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
    const auto* const alias = arguments[index].alias_info();
    if (alias != nullptr && alias->isWrite()) written_arguments_.push_back(index);
  }
}

void CpuKernel::run(Call& call) const {
  if (call.aliases.addresses().empty()) {
    run_cpu(target_, key_, &call.cpu_stack);
    return;
  }
  Addresses addresses = call.aliases.addresses();
  if (has_workspace_) call.workspace = workspace_of(call.stream);
  if (call.workspace != 0) addresses.push_back(call.workspace);
  hold_stream(call.stream.stream(), name_.c_str(), addresses, [&] {
    if (call.workspace != 0) ++*reinterpret_cast<uint32_t*>(call.workspace);  // the kernel's
    run_cpu(target_, key_, &call.cpu_stack);
  });
}

void CpuKernel::run_drawing(Call& call) const {
  at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(call.stream.device_index());
  if (generator_argument_ >= 0 && !call.arguments[generator_argument_].isNone()) {
    generator = call.arguments[generator_argument_].toGenerator();
    TORCH_CHECK(generator.device().is_cuda(),
                "Expected a 'cuda' device type for generator but found '",
                generator.device().type(), "'");
  }
  with_cpu_generator(generator, [&](const at::Generator& cpu) {
    if (generator_argument_ >= 0) call.cpu_stack[generator_argument_] = cpu;
    run(call);
  });
}

void refuse_sparse(const c10::IValue& value, const std::string& name) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !value.isTensor() || !value.toTensor().defined() || !value.toTensor().is_sparse(),
      "firn software device: ", name, " has sparse tensors under stream capture");
}

void CpuKernel::run_captured(Call& call) const {
  for (const c10::IValue& argument : call.arguments) refuse_sparse(argument, name_);
  TORCH_CHECK_NOT_IMPLEMENTED(!draws_, "firn software device: ", name_,
                              " draws random numbers under stream capture");
  for (const size_t index : written_arguments_) {
    for (const auto& [bytes, count] : call.aliases.storages_of(call.arguments[index])) {
      keep_until_end(call.capture, bytes, count);
    }
  }
  run_cpu(target_, key_, &call.cpu_stack);
  for (const c10::IValue& value : call.cpu_stack) refuse_sparse(value, name_);
}

void CpuKernel::finish(Call& call, torch::jit::Stack* stack) const {
  call.aliases.put_back();
  torch::jit::drop(*stack, call.arguments.size());
  for (const c10::IValue& value : call.cpu_stack) stack->push_back(call.aliases.to_cuda(value));
  const std::vector<Aliases::Copy>& copies = call.aliases.copies();
  Addresses addresses;
  for (const Aliases::Copy& copy : copies) {
    addresses.push_back(reinterpret_cast<uint64_t>(copy.to));
  }
  if (call.capture != 0) {
    copy_all(copies);
    addresses.insert(addresses.end(), call.aliases.addresses().begin(),
                     call.aliases.addresses().end());
    enqueue(call.stream.stream(), name_.c_str(), addresses,
            Replay(target_, key_, name_, call.cpu_arguments, call.cpu_stack, copies));
  } else if (!copies.empty()) {
    if (call.workspace != 0) addresses.push_back(call.workspace);
    enqueue(call.stream.stream(), name_.c_str(), addresses, [copies] { copy_all(copies); });
  }
}

void CpuKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                           torch::jit::Stack* stack) {
  if (operators_registered.load(std::memory_order_relaxed)) add_late_operators();
  const size_t argument_count = op.schema().arguments().size();
  const auto arguments = torch::jit::last(*stack, argument_count);
  DeviceCheck check(op, cpu_tensors_welcome_);
  for (size_t index = 0; index < argument_count; ++index) check.see(arguments[index], index);
  const c10::Device device = check.device();
  const c10::cuda::CUDAGuard guard(device);
  C10_CUDA_CHECK(cudaSetDevice(device.index()));  // the thread may have no context yet

  Call call{arguments, c10::cuda::getCurrentCUDAStream(device.index()), 0, 0, {}, {}, {}};
  call.capture = capture_of(call.stream.stream());
  call.cpu_stack.reserve(argument_count + 2);
  for (const c10::IValue& argument : arguments) {
    call.cpu_stack.push_back(call.aliases.to_cpu(argument));
  }
  if (call.capture != 0) {
    call.cpu_arguments = call.cpu_stack;
    run_captured(call);
  } else if (draws_) {
    run_drawing(call);
  } else {
    run(call);
  }
  finish(call, stack);
}

void RefusedKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                               torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "firn software device: no kernel for ",
                              toString(op.operator_name()));
}

}  // namespace firn::torch_ops
