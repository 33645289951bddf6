#include "pytorch_plugin/recipes/recipe.h"

#include <c10/core/UndefinedTensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <algorithm>
#include <cstring>

#include "pytorch_plugin/firn_allocator.h"
#include "pytorch_plugin/recipes/settings.h"

namespace firn::pytorch {

namespace {

using Argument = Recipe::Argument;
using Standing = Recipe::Standing;

// A call with no other key reaches the device's kernel with the tensors that it was given. (Where
// autocast has work to do the observer waits for the call that it makes.)
constexpr c10::DispatchKeySet plain_keys(
    {c10::DispatchKey::CUDA, c10::DispatchKey::CPU, c10::DispatchKey::AutogradCUDA,
     c10::DispatchKey::AutogradCPU, c10::DispatchKey::ADInplaceOrView,
     c10::DispatchKey::BackendSelect, c10::DispatchKey::AutocastCUDA, c10::DispatchKey::AutocastCPU,
     c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});

/// A recipe in the making: between a call's beginning and its end.
struct Making {
  const void* of = nullptr;  // its RecordFunction
  std::unique_ptr<Recipe> recipe = std::make_unique<Recipe>();
};
constinit thread_local Making* making_here = nullptr;

Making& making() {
  if (making_here) [[likely]]
    return *making_here;
  static thread_local Making mine;
  making_here = &mine;
  return mine;
}

bool plain(c10::DispatchKeySet keys) { return (keys & plain_keys) == keys; }

bool copy_geometry(const c10::TensorImpl& from, TensorName& to) {
  if (from.has_symbolic_sizes_strides()) return false;
  const c10::IntArrayRef sizes = from.sizes(), strides = from.strides();
  if (sizes.size() > TensorName::dims_most) return false;
  to.dims = static_cast<uint8_t>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), to.sizes.begin());
  std::copy(strides.begin(), strides.end(), to.strides.begin());
  to.offset = from.storage_offset();
  return true;
}

bool name_scalar(const c10::TensorImpl& tensor, TensorName& name) {
  if (tensor.numel() != 1 || tensor.dim() != 0 || tensor.itemsize() > sizeof(name.sizes) ||
      tensor.key_set().has(c10::DispatchKey::Conjugate) ||
      tensor.key_set().has(c10::DispatchKey::Negative))
    return false;
  name.kind = TensorName::Kind::scalar;
  name.wrapped_number = tensor.is_wrapped_number();
  name.conjugated = name.negated = false;
  name.dims = 0;
  name.offset = 0;
  std::memcpy(name.sizes.data(), tensor.data(), tensor.itemsize());
  return true;
}

/// False: it cannot be named. `device`: of the tensors so far; -1: of none.
bool name_tensor(const c10::TensorImpl& tensor, TensorName& name, int& device) {
  if (&tensor == c10::UndefinedTensorImpl::singleton()) {
    name.kind = TensorName::Kind::undefined;
    return true;
  }
  const c10::DispatchKeySet keys = tensor.key_set();
  if (!plain(keys) || !tensor.has_storage()) return false;
  const c10::StorageImpl& storage = *tensor.unsafe_storage().unsafeGetStorageImpl();
  name.type = c10::typeMetaToScalarType(tensor.dtype());
  if (storage.device_type() == c10::kCPU) return name_scalar(tensor, name);
  if (storage.device_type() != c10::kCUDA) return false;
  const int here = storage.device().index();
  if (device >= 0 && here != device) return false;
  device = here;
  if (!copy_geometry(tensor, name)) return false;
  name.kind = TensorName::Kind::device;
  name.conjugated = keys.has(c10::DispatchKey::Conjugate);
  name.negated = keys.has(c10::DispatchKey::Negative);
  name.wrapped_number = tensor.is_wrapped_number();
  name.base = storage.data_ptr().get();
  name.storage_bytes = storage.nbytes();
  if (!name.base) return name.storage_bytes == 0;  // an empty tensor
  name.written = Writes::all().count(name.base);
  return FirnAllocator::made(storage);
}

/// False: it cannot be kept. A list is copied, since the program may change its own.
bool keep_value(const c10::IValue& value, c10::IValue& kept) {
  if (value.isIntList())
    kept = value.toIntList().copy();
  else if (value.isDoubleList())
    kept = value.toDoubleList().copy();
  else if (value.isBoolList())
    kept = value.toBoolList().copy();
  else if (value.isNone() || value.isInt() || value.isDouble() || value.isBool() ||
           value.isComplexDouble() || value.isString() || value.isDevice())
    kept = value;
  else
    return false;
  return true;
}

bool add_input(const c10::IValue& value, Recipe& recipe, int& device) {
  return recipe.inputs < Recipe::inputs_most &&
         name_tensor(*value.unsafeToTensorImpl(), recipe.input[recipe.inputs++], device);
}

bool add_argument(const c10::IValue& value, Recipe& recipe, int& device) {
  Argument& argument = recipe.argument[recipe.arguments];
  c10::IValue& kept = recipe.value[recipe.arguments++];
  argument = {Argument::Kind::value, recipe.inputs, 1};
  if (value.isTensor()) {
    argument.kind = Argument::Kind::tensor;
    return add_input(value, recipe, device);
  }
  if (value.isTensorList()) {
    const c10::ArrayRef<c10::IValue> list = value.toListRef();
    if (list.size() > Recipe::inputs_most) return false;
    argument = {Argument::Kind::list, recipe.inputs, static_cast<uint8_t>(list.size())};
    return std::all_of(list.begin(), list.end(), [&](const c10::IValue& each) {
      return each.isTensor() && add_input(each, recipe, device);
    });
  }
  return keep_value(value, kept);
}

/// Batch normalisation writes its running statistics where it is told to train; elsewhere it only
/// reads them.
bool writes_nothing(const RemadeOperator& made_by, const Recipe& recipe) {
  if (!made_by.batch_norm) return true;
  constexpr size_t running_mean = 3, running_var = 4, training = 5;
  const auto given = [&](size_t at) {
    return recipe.argument[at].kind == Argument::Kind::tensor &&
           recipe.input[recipe.argument[at].first].kind != TensorName::Kind::undefined;
  };
  return !recipe.value[training].toBool() || (!given(running_mean) && !given(running_var));
}

/// The result fills a storage of its own.
bool name_result(const c10::TensorImpl& tensor, Recipe& recipe) {
  TensorName& name = recipe.result[recipe.results];
  int device = recipe.device;
  if (!name_tensor(tensor, name, device)) return false;
  ++recipe.results;
  if (name.kind == TensorName::Kind::undefined || !name.base) return true;
  if (name.kind != TensorName::Kind::device || name.conjugated || name.negated ||
      name.wrapped_number || name.offset != 0 || !tensor.is_non_overlapping_and_dense() ||
      static_cast<uint64_t>(tensor.numel()) * tensor.itemsize() != name.storage_bytes)
    return false;
  const auto shares = [&](const TensorName& other) {
    return other.kind == TensorName::Kind::device && other.base == name.base;
  };
  return std::none_of(recipe.input.begin(), recipe.input.begin() + recipe.inputs, shares) &&
         std::none_of(recipe.result.begin(), recipe.result.begin() + recipe.results - 1, shares);
}

}  // namespace

Recipe::Standing Recipe::standing(size_t result_at) const {
  const Writes& writes = Writes::all();
  if (!result[result_at].unchanged()) return Standing::result_written;
  for (size_t i = 0; i < inputs; ++i)
    if (!input[i].unchanged()) return Standing::input_written;
  if (!writes.all_seen_since(unseen)) return Standing::unseen;
  return settings_of(*made_by) == settings ? Standing::stands : Standing::settings;
}

void Recipe::assign(const Recipe& from) {
  made_by = from.made_by;
  device = from.device;
  arguments = from.arguments, inputs = from.inputs, results = from.results;
  stream = from.stream, settings = from.settings, unseen = from.unseen;
  std::copy_n(from.argument.begin(), arguments, argument.begin());
  std::copy_n(from.value.begin(), arguments, value.begin());
  std::copy_n(from.input.begin(), inputs, input.begin());
  std::copy_n(from.result.begin(), results, result.begin());
}

void begin_recipe(const RemadeOperator& made_by, const at::RecordFunction& record) {
  Making& now = making();
  now.of = nullptr;
  const c10::ArrayRef<const c10::IValue> given = record.inputs();
  const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  if (given.size() > Recipe::arguments_most || !plain(local.included_ - local.excluded_) ||
      installed_allocator()->pools().recording())
    return;
  Recipe& recipe = *now.recipe;
  recipe.made_by = &made_by;
  recipe.arguments = recipe.inputs = recipe.results = 0;
  int device = -1;
  for (const c10::IValue& value : given)
    if (!add_argument(value, recipe, device)) return;
  if (device < 0 || !writes_nothing(made_by, recipe)) return;
  recipe.device = static_cast<c10::DeviceIndex>(device);
  recipe.settings = settings_of(made_by);
  if (recipe.settings == 0) return;
  recipe.unseen = Writes::all().unseen();
  if (!Writes::all().all_seen_since(recipe.unseen)) return;
  now.of = &record;
}

std::unique_ptr<Recipe>* finish_recipe(const at::RecordFunction& record) {
  if (!making_here || making_here->of != &record) return nullptr;
  Making& now = *making_here;
  now.of = nullptr;
  Recipe& recipe = *now.recipe;
  const auto& results = record.outputs();
  if (results.size() > Recipe::results_most) return nullptr;
  for (const c10::IValue& result : results)
    if (!result.isTensor() || !name_result(*result.unsafeToTensorImpl(), recipe)) return nullptr;
  return &now.recipe;
}

}  // namespace firn::pytorch
