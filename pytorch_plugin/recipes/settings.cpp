#include "pytorch_plugin/recipes/settings.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

namespace firn::pytorch {

namespace {

// The number's lower bits, which every operator's depends on; products' follow.
constexpr uint64_t kept = 1, deterministic = 2;
constexpr unsigned type_shift = 2, products_shift = 16;

c10::ScalarType type_in(uint64_t settings) {
  return static_cast<c10::ScalarType>((settings >> type_shift) &
                                      ((1u << (products_shift - type_shift)) - 1));
}

std::shared_mutex mutex;

}  // namespace

uint64_t settings_of(const RemadeOperator& made_by) {
  uint64_t all = kept;
  all |= static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) << type_shift;
  if (at::globalContext().deterministicAlgorithms()) all |= deterministic;
  if (!made_by.product) return all;
  if (!ProductSettings::are_steady()) return 0;
  return (ProductSettings::now() << products_shift) | all;
}

SettingsThen::SettingsThen(const RemadeOperator& made_by, uint64_t then) : same_(mutex) {
  if (settings_of(made_by) == then) return;
  same_.unlock();
  changed_ = std::unique_lock(mutex);
  at::Context& torch = at::globalContext();
  type_ = c10::get_default_dtype_as_scalartype();
  deterministic_ = torch.deterministicAlgorithms();
  warn_only_ = torch.deterministicAlgorithmsWarnOnly();
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(type_in(then)));
  torch.setDeterministicAlgorithms((then & deterministic) != 0, true);
  if (made_by.product) products_.emplace(then >> products_shift);
}

SettingsThen::~SettingsThen() {
  if (!changed_) return;
  products_.reset();
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(type_));
  at::globalContext().setDeterministicAlgorithms(deterministic_, warn_only_);
}

}  // namespace firn::pytorch
