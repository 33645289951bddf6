// torch's settings that an operator's bits depend on: the default type, whether kernels have to be
// deterministic, and for products their precision and library.
//
// They are the process's. Where they have changed since a recipe was taken, they are put back while
// its operator runs again: other threads that run one again wait meanwhile, and an operator of the
// program's in another thread may see them. (Programs change them between iterations, if at all.)
// Locks: one of its own, while a SettingsThen lives; shared where nothing has changed.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <shared_mutex>

#include "pytorch_plugin/recipes/product_settings.h"
#include "pytorch_plugin/recipes/remade.h"

namespace firn::pytorch {

/// Those that the operator's bits depend on, as a number. 0: two runs of it may differ
/// (ProductSettings::are_steady()), so that no recipe is taken.
uint64_t settings_of(const RemadeOperator& made_by);

/// While it lives, the settings are as settings_of() said `then`.
class SettingsThen {
 public:
  SettingsThen(const RemadeOperator& made_by, uint64_t then);
  ~SettingsThen();
  SettingsThen(const SettingsThen&) = delete;
  SettingsThen& operator=(const SettingsThen&) = delete;

 private:
  std::shared_lock<std::shared_mutex> same_;
  std::unique_lock<std::shared_mutex> changed_;
  c10::ScalarType type_ = c10::ScalarType::Undefined;  // the program's, to be put back
  bool deterministic_ = false, warn_only_ = false;
  std::optional<ProductSettings> products_;
};

}  // namespace firn::pytorch
