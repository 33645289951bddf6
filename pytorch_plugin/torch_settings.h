// torch's own settings (PYTORCH_CUDA_ALLOC_CONF, PYTORCH_ALLOC_CONF): what each means with Firn.
#pragma once

#include <span>
#include <string>

namespace firn::pytorch {

struct TorchSetting {
  enum class Fate {
    kept,      // means what it means with the native allocator
    needless,  // accepted: its purpose cannot arise here, or is met anyway
  };
  const char* name;
  Fate fate;
  const char* words;  // why it is needless
};

std::span<const TorchSetting> torch_settings();
/// A Markdown table of all of them. torch's keys that are not among them are "unknown".
std::string settings_table();
/// By roundup_power2_divisions: up to the next of so many steps between two powers of two.
size_t rounded_by_settings(size_t bytes);
/// The needless ones among the settings in use, each with its words; empty when there are none.
std::string needless_settings(const std::string& settings);
/// Has torch parse its settings now: malformed values and unknown keys throw, as natively. Says
/// once which of them are needless.
void check_torch_settings();

}  // namespace firn::pytorch
