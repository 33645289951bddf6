#include "pytorch_plugin/recipes/make_again.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <thread>
#include <vector>

#include "allocator/runtime/runtime.h"
#include "pytorch_plugin/firn_allocator.h"
#include "pytorch_plugin/observer.h"
#include "pytorch_plugin/recipes/kept.h"
#include "pytorch_plugin/recipes/relaxed_capture.h"
#include "pytorch_plugin/recipes/settings.h"

namespace firn::pytorch {

const OperatorInfo making_again{
    .name = "firn::remake", .overload = "", .kind = OperatorInfo::Kind::uses};

namespace {

using torch::jit::Stack;

constexpr int spoilt_byte = 0xa5;

/// torch's stream with that handle: the recipe's own or the current one where it is that.
c10::cuda::CUDAStream stream_with(CUstream handle, const Recipe& recipe) {
  const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(recipe.device);
  if (current.stream() == handle) return current;
  if (recipe.stream >= 0) {
    const c10::cuda::CUDAStream own = c10::cuda::CUDAStream::unpack3(
        recipe.stream, recipe.device, c10::DeviceType::CUDA);
    if (own.stream() == handle) return own;
  }
  return c10::cuda::getStreamFromExternal(handle, recipe.device);
}

/// Whoever runs operators while it lives reaches the devices' kernels at once, unobserved.
class BelowAll {
 public:
  BelowAll() : keys_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect), others) {}

 private:
  static constexpr c10::DispatchKeySet others =
      c10::DispatchKeySet(c10::DispatchKeySet::FULL) -
      c10::DispatchKeySet({c10::DispatchKey::CUDA, c10::DispatchKey::CPU,
                           c10::DispatchKey::BackendSelect, c10::DispatchKey::Conjugate,
                           c10::DispatchKey::Negative});
  at::NoGradGuard without_gradients_;
  at::DisableRecordFunctionGuard unobserved_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

at::Tensor tensor_of(const Recipe& recipe, const TensorName& name) {
  if (name.kind == TensorName::Kind::undefined) return {};
  const bool scalar = name.kind == TensorName::Kind::scalar;
  const size_t bytes = scalar ? c10::elementSize(name.type) : name.storage_bytes;
  c10::DataPtr data;
  if (scalar) {  // (a kernel may read it later)
    data = c10::GetCPUAllocator()->allocate(bytes);
    std::memcpy(data.get(), recipe.scalar(name), bytes);
  } else {
    data = c10::DataPtr(const_cast<void*>(name.base), c10::Device(c10::kCUDA, recipe.device));
  }
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t{}, bytes, std::move(data), nullptr, false),
      c10::DispatchKeySet(scalar ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA),
      c10::scalarTypeToTypeMeta(name.type));
  c10::TensorImpl* const impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(recipe.sizes(name), recipe.strides(name), name.offset);
  if (name.wrapped_number) impl->set_wrapped_number(true);
  if (name.conjugated) made._set_conj(true);
  if (name.negated) made._set_neg(true);
  return made;
}

Stack arguments_of(const Recipe& recipe, const std::vector<at::Tensor>& inputs) {
  Stack stack;
  for (size_t i = 0; i < recipe.arguments; ++i) {
    const Recipe::Argument& argument = recipe.argument[i];
    if (argument.kind == Recipe::Argument::Kind::tensor) {
      const at::Tensor& input = inputs[argument.first];
      stack.push_back(input.defined() ? c10::IValue(input) : c10::IValue());
    } else if (argument.kind == Recipe::Argument::Kind::list) {
      c10::List<at::Tensor> list;
      for (size_t each = 0; each < argument.count; ++each)
        list.push_back(inputs[argument.first + each]);
      stack.emplace_back(std::move(list));
    } else {
      stack.push_back(recipe.value_of(i));
    }
  }
  return stack;
}

void check_like(const at::Tensor& made, const Recipe& recipe, size_t result_at) {
  const TensorName& wanted = recipe.result(result_at);
  TORCH_CHECK(made.defined() && made.scalar_type() == wanted.type &&
                  made.sizes() == recipe.sizes(wanted),
              "the result has another type or shape than before");
}

/// Writes the result itself; the operator's others go to temporaries.
void run_into(const Recipe& recipe, size_t result_at, Stack stack) {
  at::Tensor target;
  for (size_t i = 0; i < recipe.results; ++i) {
    const TensorName& name = recipe.result(i);
    if (i == result_at) {
      target = tensor_of(recipe, name);
      stack.emplace_back(target);
      continue;
    }
    stack.emplace_back(at::empty_strided(
        recipe.sizes(name), recipe.strides(name),
        at::TensorOptions().dtype(name.type).device(c10::kCUDA, recipe.device)));
  }
  recipe.made_by->into->callBoxed(&stack);
  check_like(target, recipe, result_at);
  TORCH_CHECK(target.const_data_ptr() == recipe.result(result_at).base,
              "the out= overload took other memory");
}

void run_and_copy(const Recipe& recipe, size_t result_at, Stack stack) {
  recipe.made_by->op.callBoxed(&stack);
  const at::Tensor& made = stack.at(result_at).toTensor();
  check_like(made, recipe, result_at);
  tensor_of(recipe, recipe.result(result_at)).copy_(made);
}

/// Results that a call leaves undefined cannot be given to an out= overload.
bool may_run_into(const Recipe& recipe) {
  for (size_t i = 0; i < recipe.results; ++i) {
    const TensorName& result = recipe.result(i);
    if (result.kind != TensorName::Kind::device) return false;
    if (recipe.made_by->product && result.type != c10::ScalarType::Float &&
        result.type != c10::ScalarType::Double)
      return false;
  }
  return recipe.made_by->into.has_value();
}

void run(const Recipe& recipe, size_t result_at) {
  const SettingsThen then(*recipe.made_by, recipe.settings);
  at::RecordFunction named(at::RecordScope::FUNCTION);
  if (named.isActive()) named.before(recipe.made_by->label);
  BelowAll below;
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < recipe.inputs; ++i)
    inputs.push_back(tensor_of(recipe, recipe.input(i)));
  Stack stack = arguments_of(recipe, inputs);
  if (may_run_into(recipe))
    run_into(recipe, result_at, std::move(stack));
  else
    run_and_copy(recipe, result_at, std::move(stack));
}

/// Holds on inputs, released as used on the stream.
class HeldInputs {
 public:
  HeldInputs(Engine& engine, CUstream stream) : engine_(engine), stream_(stream) {}
  HeldInputs(const HeldInputs&) = delete;
  HeldInputs& operator=(const HeldInputs&) = delete;
  ~HeldInputs() {
    if (!holds_.empty()) engine_.release_many(holds_, stream_);
  }
  std::string add(const void* base, Access access) {
    Result<Hold> hold = engine_.touch(base, stream_, access);
    if (!hold) return describe(hold.error());
    if (hold->block) holds_.push_back(*hold);
    return {};
  }

 private:
  Engine& engine_;
  const CUstream stream_;
  std::vector<Hold> holds_;
};

const char* words_of(Recipe::Standing standing) {
  switch (standing) {
    case Recipe::Standing::stands: return "";
    case Recipe::Standing::input_written: return "an input was written or has ended";
    case Recipe::Standing::result_written: return "the result was written or has ended";
    case Recipe::Standing::unseen: return "work was enqueued outside of PyTorch's operators";
    case Recipe::Standing::settings: return "a setting that its bits depend on was changed";
  }
  return "";
}

Engine* engine_of_recipe(const Recipe& recipe) {
  Runtime* runtime = Runtime::get();
  return runtime ? runtime->opened(recipe.device) : nullptr;
}

}  // namespace

std::string run_again(const Recipe& recipe, size_t result_at, CUstream stream) noexcept {
  return words_of_errors([&]() -> std::string {
    // (A thread that has turned TF32 off for itself cannot turn it on: another one can.)
    if (recipe.made_by->product && at::NoTF32Guard::should_disable_tf32()) {
      std::string error;
      std::thread([&] {
        const RelaxedCapture relaxed;
        error = run_again(recipe, result_at, stream);
      }).join();
      return error;
    }
    const c10::cuda::CUDAGuard device(recipe.device);
    const c10::cuda::CUDAStreamGuard on(stream_with(stream, recipe));
    ObservedScope scope(making_again);  // its launches are covered, its temporaries are held
    run(recipe, result_at);
    recipe.made_by->made_again.fetch_add(1, std::memory_order_relaxed);
    return {};
  });
}

std::string make_again(const Recipe& recipe, size_t result_at, CUstream stream) {
  Engine* engine = engine_of_recipe(recipe);
  if (!engine) return "the device is not open";
  return words_of_errors([&]() -> std::string {
    HeldInputs held(*engine, stream);
    for (size_t i = 0; i < recipe.inputs; ++i)
      if (recipe.input(i).kind == TensorName::Kind::device && recipe.input(i).base)
        if (std::string error = held.add(recipe.input(i).base, Access::read); !error.empty())
          return error;
    return run_again(recipe, result_at, stream);
  });
}

std::string make_again(const void* base, CUstream stream, bool spoil) {
  return words_of_errors([&]() -> std::string {
    Recipe recipe;
    size_t result_at = 0;
    if (!find_recipe(base, recipe, result_at)) return "no recipe is kept for it";
    if (const auto standing = recipe.standing(result_at); standing != Recipe::Standing::stands)
      return words_of(standing);
    Engine* engine = engine_of_recipe(recipe);
    if (!engine) return "the device is not open";
    ObservedScope scope(making_again);
    HeldInputs held(*engine, stream);
    if (std::string error = held.add(base, Access::write); !error.empty()) return error;
    if (spoil) {
      C10_CUDA_CHECK(cudaDeviceSynchronize());  // (uses on other streams)
      C10_CUDA_CHECK(cudaMemsetAsync(const_cast<void*>(base), spoilt_byte,
                                     recipe.result(result_at).storage_bytes, stream));
    }
    return make_again(recipe, result_at, stream);
  });
}

std::string recipe_text(const void* base) {
  Recipe recipe;
  size_t result_at = 0;
  if (!find_recipe(base, recipe, result_at)) return {};
  std::string text = toString(recipe.made_by->op.operator_name());
  const auto standing = recipe.standing(result_at);
  return standing == Recipe::Standing::stands ? text : text + ": " + words_of(standing);
}

void always_make_again(bool wanted) { making_always = wanted; }

void make_arguments_again(c10::ArrayRef<const c10::IValue> arguments) {
  for (const c10::IValue& argument : arguments)
    for_each_tensor(argument, [](c10::TensorImpl* tensor) {
      if (!tensor->key_set().has_backend(c10::BackendComponent::CUDABit) || !tensor->has_storage())
        return;
      c10::StorageImpl* const storage = tensor->unsafe_storage().unsafeGetStorageImpl();
      const void* const base = storage ? storage->data_ptr().get() : nullptr;
      Recipe recipe;
      size_t result_at = 0;
      if (!base || !find_recipe(base, recipe, result_at) ||
          recipe.standing(result_at) != Recipe::Standing::stands)
        return;
      const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(recipe.device);
      const std::string error = make_again(base, current.stream(), true);
      TORCH_CHECK(error.empty(), "making again by ", recipe_text(base), ": ", error);
    });
}

}  // namespace firn::pytorch
