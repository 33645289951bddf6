#include "pytorch_plugin/torch_settings.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>

#include <algorithm>
#include <bit>
#include <iterator>

namespace firn::pytorch {

namespace {

using Fate = TorchSetting::Fate;

constexpr const char* no_split = "large blocks are not split: each has the memory it asked for";

constexpr const char* reserved = "addresses for all of a device's memory are reserved once";

constexpr TorchSetting table[] = {
    {"backend", Fate::kept, ""},
    {"per_process_memory_fraction", Fate::kept, ""},
    {"roundup_power2_divisions", Fate::kept, ""},
    // torch's pinned host memory is not Firn's: these go on as they were.
    {"pinned_use_background_threads", Fate::kept, ""},
    {"pinned_use_cuda_host_register", Fate::kept, ""},
    {"pinned_num_register_threads", Fate::kept, ""},
    {"pinned_reserve_segment_size_mb", Fate::kept, ""},
    {"pinned_free_catch_all", Fate::kept, ""},
    {"pinned_max_round_threshold_mb", Fate::kept, ""},
    {"pinned_max_cached_size_mb", Fate::kept, ""},
    {"max_split_size_mb", Fate::needless, no_split},
    {"max_non_split_rounding_mb", Fate::needless, no_split},
    {"large_segment_size_mb", Fate::needless, no_split},
    {"expandable_segments", Fate::needless,
     "memory is always mapped by frames, which any block can use"},
    {"expandable_segments_reserve", Fate::needless, reserved},
    {"expandable_segments_reserve_by_class", Fate::needless, reserved},
    {"garbage_collection_threshold", Fate::needless,
     "cached memory is given up as soon as it is needed elsewhere"},
    {"throw_on_cudamalloc_oom", Fate::needless,
     "an allocation that does not fit is always refused"},
    {"release_lock_on_cudamalloc", Fate::needless, "a cached block is handed out without a lock"},
    {"graph_capture_record_stream_reuse", Fate::needless,
     "within a capture, blocks used on several streams are never reused"},
};

}  // namespace

std::span<const TorchSetting> torch_settings() { return table; }

std::string settings_table() {
  std::string out = "| setting | with Firn |\n|---|---|\n";
  for (const TorchSetting& setting : table)
    out += std::string("| `") + setting.name + "` | " +
           (setting.fate == Fate::kept ? std::string("as natively")
                                       : std::string("needless: ") + setting.words) +
           " |\n";
  for (const std::string& key : c10::CachingAllocator::AcceleratorAllocatorConfig::getKeys()) {
    const bool known = std::any_of(std::begin(table), std::end(table),
                                   [&](const TorchSetting& each) { return key == each.name; });
    // Another vendor's names for the same settings.
    if (!known && key.find("hip") == std::string::npos)
      out += "| `" + key + "` | unknown |\n";
  }
  return out;
}

std::string needless_settings(const std::string& settings) {
  std::string out;
  const c10::CachingAllocator::ConfigTokenizer tokens(settings);
  for (const TorchSetting& setting : table) {
    bool named = false;
    for (size_t i = 0; i + 2 < tokens.size(); ++i)
      named |= tokens[i] == setting.name && tokens[i + 1] == ":" && tokens[i + 2] != "False";
    if (named && setting.fate == Fate::needless)
      out += (out.empty() ? "" : "; ") + std::string(setting.name) + " (" + setting.words + ")";
  }
  return out;
}

size_t rounded_by_settings(size_t bytes) {
  constexpr size_t unit = 512;
  if (bytes <= 2 * unit || (bytes & (bytes - 1)) == 0) return bytes;  // (no call, as to count bits)
  const size_t divisions =
      c10::CachingAllocator::AcceleratorAllocatorConfig::roundup_power2_divisions(bytes);
  if (divisions < 2 || bytes <= divisions * unit) return bytes;
  const size_t step = std::bit_floor(bytes) / std::bit_floor(divisions);
  return (bytes + step - 1) / step * step;
}

void check_torch_settings() {
  (void)c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::instance();
  const std::string needless = needless_settings(c10::CachingAllocator::getAllocatorSettings());
  if (!needless.empty()) TORCH_WARN("firn: these settings have no effect with Firn: ", needless);
}

}  // namespace firn::pytorch
