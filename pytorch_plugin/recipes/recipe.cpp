#include "pytorch_plugin/recipes/recipe.h"

#include <c10/core/UndefinedTensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <algorithm>
#include <bit>
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

/// Room for so many more numbers; null: there is none.
int64_t* add_numbers(Recipe& recipe, size_t count, uint8_t& first) {
  if (count > Recipe::numbers_most - recipe.numbers) return nullptr;
  first = recipe.numbers;
  recipe.numbers = static_cast<uint8_t>(recipe.numbers + count);
  return recipe.number.data() + first;
}

bool copy_geometry(const c10::TensorImpl& from, TensorName& to, Recipe& recipe) {
  if (from.has_symbolic_sizes_strides()) return false;
  const c10::IntArrayRef sizes = from.sizes(), strides = from.strides();
  const size_t dims = sizes.size();
  if (dims > Recipe::dims_most) return false;
  int64_t* const numbers = add_numbers(recipe, 2 * dims, to.first);
  if (!numbers) return false;
  to.dims = static_cast<uint8_t>(dims);
  for (size_t i = 0; i < dims; ++i) numbers[i] = sizes[i];  // (Few: a call would take longer.)
  for (size_t i = 0; i < dims; ++i) numbers[dims + i] = strides[i];
  to.offset = from.storage_offset();
  return true;
}

bool name_scalar(const c10::TensorImpl& tensor, TensorName& name, Recipe& recipe) {
  constexpr size_t bytes_most = 2 * sizeof(int64_t);
  if (tensor.numel() != 1 || tensor.dim() != 0 || tensor.itemsize() > bytes_most ||
      tensor.key_set().has(c10::DispatchKey::Conjugate) ||
      tensor.key_set().has(c10::DispatchKey::Negative))
    return false;
  int64_t* const value = add_numbers(recipe, bytes_most / sizeof(int64_t), name.first);
  if (!value) return false;
  name.kind = TensorName::Kind::scalar;
  name.base = nullptr;
  name.wrapped_number = tensor.is_wrapped_number();
  name.conjugated = name.negated = false;
  name.dims = 0;
  name.offset = 0;
  std::memcpy(value, tensor.data(), tensor.itemsize());
  return true;
}

/// False: it cannot be named. `device`: of the tensors so far; -1: of none.
bool name_tensor(const c10::TensorImpl& tensor, TensorName& name, Recipe& recipe, int& device) {
  if (&tensor == c10::UndefinedTensorImpl::singleton()) {
    name.kind = TensorName::Kind::undefined;
    name.base = nullptr;
    return true;
  }
  const c10::DispatchKeySet keys = tensor.key_set();
  if (!plain(keys)) return false;
  // (has_storage() may be overridden: such a tensor has another key.)
  const c10::StorageImpl* const its_storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  if (!its_storage) return false;
  const c10::StorageImpl& storage = *its_storage;
  name.type = c10::typeMetaToScalarType(tensor.dtype());
  if (storage.device_type() == c10::kCPU) return name_scalar(tensor, name, recipe);
  if (storage.device_type() != c10::kCUDA) return false;
  const int here = storage.device().index();
  if (device >= 0 && here != device) return false;
  device = here;
  if (!copy_geometry(tensor, name, recipe)) return false;
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

/// False: it cannot be kept. (To ask the list for its type would take an atomic operation.)
bool keep_list(c10::ArrayRef<c10::IValue> list, Argument& argument, Recipe& recipe) {
  if (list.size() > Recipe::numbers_most) return false;
  argument.count = static_cast<uint8_t>(list.size());
  int64_t* number = add_numbers(recipe, list.size(), argument.first);
  if (!number) return false;
  const auto copy = [&](Argument::Kind kind, bool (c10::IValue::*is)() const, auto&& as) {
    argument.kind = kind;
    return std::all_of(list.begin(), list.end(), [&](const c10::IValue& each) {
      if (!(each.*is)()) return false;
      *number++ = as(each);
      return true;
    });
  };
  if (list.front().isInt())
    return copy(Argument::Kind::ints, &c10::IValue::isInt,
                [](const c10::IValue& each) { return each.toInt(); });
  if (list.front().isDouble())
    return copy(Argument::Kind::doubles, &c10::IValue::isDouble,
                [](const c10::IValue& each) { return std::bit_cast<int64_t>(each.toDouble()); });
  return copy(Argument::Kind::bools, &c10::IValue::isBool,
              [](const c10::IValue& each) { return static_cast<int64_t>(each.toBool()); });
}

/// The same for a list of nothing, of whatever type.
bool keep_empty_list(const c10::IValue& value, Argument& argument, const Recipe& recipe) {
  argument.first = recipe.numbers;
  argument.count = 0;
  if (value.isIntList())
    argument.kind = Argument::Kind::ints;
  else if (value.isDoubleList())
    argument.kind = Argument::Kind::doubles;
  else if (value.isBoolList())
    argument.kind = Argument::Kind::bools;
  else if (value.isTensorList())
    argument = {Argument::Kind::list, recipe.inputs, 0};
  else
    return false;
  return true;
}

bool keep_text(const std::string& text, Argument& argument, Recipe& recipe) {
  if (text.size() > UINT8_MAX) return false;
  argument.kind = Argument::Kind::text;
  argument.count = static_cast<uint8_t>(text.size());
  int64_t* const numbers =
      add_numbers(recipe, (text.size() + sizeof *numbers - 1) / sizeof *numbers, argument.first);
  if (!numbers) return false;
  std::memcpy(numbers, text.data(), text.size());
  return true;
}

/// False: it cannot be kept. Lists and texts are copied into the recipe: the program may change its
/// own, and to own theirs would take atomic operations, now and when the recipe is replaced.
bool keep_value(const c10::IValue& value, size_t at, Recipe& recipe) {
  Argument& argument = recipe.argument[at];
  if (value.isString()) return keep_text(value.toStringRef(), argument, recipe);
  if (value.isNone() || value.isInt() || value.isDouble() || value.isBool() ||
      value.isComplexDouble() || value.isDevice()) {
    recipe.value[at] = value;
    return true;
  }
  if (!value.isList()) return false;
  const c10::ArrayRef<c10::IValue> list = value.toListRef();
  return list.empty() ? keep_empty_list(value, argument, recipe)
                      : keep_list(list, argument, recipe);
}

template <class T, class Number>
c10::IValue list_of(const int64_t* number, size_t count, Number&& as) {
  c10::List<T> list;
  list.reserve(count);
  for (size_t i = 0; i < count; ++i) list.push_back(as(number[i]));
  return list;
}

bool add_input(const c10::IValue& value, Recipe& recipe, int& device) {
  return recipe.inputs < Recipe::inputs_most &&
         name_tensor(*value.unsafeToTensorImpl(), recipe.tensor[recipe.inputs++], recipe, device);
}

bool add_argument(const c10::IValue& value, Recipe& recipe, int& device) {
  const size_t at = recipe.arguments++;
  Argument& argument = recipe.argument[at];
  argument = {Argument::Kind::value, recipe.inputs, 1};
  if (value.isTensor()) {
    argument.kind = Argument::Kind::tensor;
    return add_input(value, recipe, device);
  }
  if (value.isList() && !value.toListRef().empty() && value.toListRef().front().isTensor()) {
    const c10::ArrayRef<c10::IValue> list = value.toListRef();
    if (list.size() > Recipe::inputs_most) return false;
    argument = {Argument::Kind::list, recipe.inputs, static_cast<uint8_t>(list.size())};
    return std::all_of(list.begin(), list.end(), [&](const c10::IValue& each) {
      return each.isTensor() && add_input(each, recipe, device);
    });
  }
  return keep_value(value, at, recipe);
}

/// Batch normalisation writes its running statistics where it is told to train; elsewhere it only
/// reads them.
bool writes_nothing(const RemadeOperator& made_by, const Recipe& recipe) {
  if (!made_by.batch_norm) return true;
  constexpr size_t running_mean = 3, running_var = 4, training = 5;
  const auto given = [&](size_t at) {
    return recipe.argument[at].kind == Argument::Kind::tensor &&
           recipe.input(recipe.argument[at].first).kind != TensorName::Kind::undefined;
  };
  return !recipe.value[training].toBool() || (!given(running_mean) && !given(running_var));
}

/// The result fills a storage of its own.
bool name_result(const c10::TensorImpl& tensor, Recipe& recipe) {
  TensorName& name = recipe.tensor[recipe.inputs + recipe.results];
  int device = recipe.device;
  if (!name_tensor(tensor, name, recipe, device)) return false;
  ++recipe.results;
  if (name.kind == TensorName::Kind::undefined || !name.base) return true;
  if (name.kind != TensorName::Kind::device || name.conjugated || name.negated ||
      name.wrapped_number || name.offset != 0 || !tensor.is_non_overlapping_and_dense() ||
      static_cast<uint64_t>(tensor.numel()) * tensor.itemsize() != name.storage_bytes)
    return false;
  const auto shares = [&](const TensorName& other) {
    return other.kind == TensorName::Kind::device && other.base == name.base;
  };
  const auto first = recipe.tensor.begin();
  return std::none_of(first, first + recipe.inputs + recipe.results - 1, shares);
}

}  // namespace

Recipe::Standing Recipe::standing(size_t result_at) const {
  const Writes& writes = Writes::all();
  if (!result(result_at).unchanged()) return Standing::result_written;
  for (size_t i = 0; i < inputs; ++i)
    if (!input(i).unchanged()) return Standing::input_written;
  if (!writes.all_seen_since(unseen)) return Standing::unseen;
  return settings_of(*made_by) == settings ? Standing::stands : Standing::settings;
}

void Recipe::assign(const Recipe& from) {
  made_by = from.made_by;
  stream = from.stream, settings = from.settings, unseen = from.unseen;
  device = from.device;
  arguments = from.arguments, inputs = from.inputs, results = from.results, numbers = from.numbers;
  std::copy_n(from.argument.begin(), arguments, argument.begin());
  std::copy_n(from.tensor.begin(), inputs + results, tensor.begin());
  std::copy_n(from.number.begin(), numbers, number.begin());
  for (size_t i = 0; i < arguments; ++i)
    if (argument[i].kind == Argument::Kind::value) value[i] = from.value[i];
}

c10::IValue Recipe::value_of(size_t at) const {
  const Argument& of = argument[at];
  const int64_t* const first = number.data() + of.first;
  switch (of.kind) {
    case Argument::Kind::ints:
      return list_of<int64_t>(first, of.count, [](int64_t number) { return number; });
    case Argument::Kind::doubles:
      return list_of<double>(first, of.count, [](int64_t n) { return std::bit_cast<double>(n); });
    case Argument::Kind::bools:
      return list_of<bool>(first, of.count, [](int64_t number) { return number != 0; });
    case Argument::Kind::text:
      return std::string(reinterpret_cast<const char*>(first), of.count);
    default: return value[at];
  }
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
  recipe.arguments = recipe.inputs = recipe.results = recipe.numbers = 0;
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
