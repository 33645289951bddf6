#include "allocator/preload/pool_words.h"

#include <link.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "allocator/preload/memory.h"
#include "allocator/runtime/config.h"
#include "firn/said.h"

namespace firn::preload {

namespace {
struct Framework {
  std::string_view library;  // part of a path
  std::string_view advice;
  const char* variable;      // set to `value`, it has the advice already; null: none
  std::string_view value;
};
// XLA's other allocators map memory by themselves; since JAX 0.11 "platform" does, too.
constexpr std::string_view xla_allocator =
    "XLA: XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async gives each array a block of its own";
constexpr std::string_view xla_first_block =
    "XLA: XLA_PYTHON_CLIENT_PREALLOCATE=false avoids the single block that it starts with";
// Frameworks that others build upon come last.
constexpr Framework frameworks[] = {
    {"vllm/", "vLLM: a smaller --gpu-memory-utilization makes its tensors smaller", nullptr, ""},
    {"xla_cuda", xla_allocator, "XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async"},
    {"xla_extension", xla_allocator, "XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async"},
    {"xla_cuda", xla_first_block, "XLA_PYTHON_CLIENT_PREALLOCATE", "false"},
    {"xla_extension", xla_first_block, "XLA_PYTHON_CLIENT_PREALLOCATE", "false"},
    {"libtensorflow", "TensorFlow: TF_GPU_ALLOCATOR=cuda_malloc_async gives each tensor a block of "
                      "its own, TF_FORCE_GPU_ALLOW_GROWTH=true makes blocks smaller",
     "TF_GPU_ALLOCATOR", "cuda_malloc_async"},
    {"librmm", "RMM: rmm.reinitialize(pool_allocator=False) gives each buffer a block of its own",
     nullptr, ""},
    {"cupy", "CuPy: cupy.cuda.set_allocator(None) gives each array a block of its own", nullptr,
     ""},
};

bool has(const Framework& framework) {
  const char* const set = framework.variable ? ::secure_getenv(framework.variable) : nullptr;
  if (!set) return false;
  std::string word = set;  // JAX knows "False" and "0", too
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return word == framework.value || (framework.value == "false" && word == "0");
}

int add_path(dl_phdr_info* info, size_t, void* list) {
  static_cast<std::vector<std::string>*>(list)->emplace_back(info->dlpi_name);
  return 0;
}
std::vector<std::string> libraries_here() {
  std::vector<std::string> paths;
  (void)::dl_iterate_phdr(add_path, &paths);
  return paths;
}

/// `mapped`: for memory that the framework maps by itself.
std::string_view advice(bool mapped) {
  const std::vector<std::string> libraries = libraries_here();
  for (const Framework& each : frameworks) {
    if (mapped && each.advice != xla_allocator) continue;
    const bool loaded = std::any_of(libraries.begin(), libraries.end(), [&](const auto& path) {
      return path.find(each.library) != std::string::npos;
    });
    if (loaded && !has(each)) return each.advice;
  }
  return "A framework that allocates its tensors one by one would help";
}

}  // namespace

void tell_of_pool(uint64_t bytes, uint64_t budget_bytes) {
  static std::atomic<bool> told{false};
  if (bytes <= budget_bytes / 2 || told.load(std::memory_order_relaxed)) return;
  if (is_beyond_device(bytes) || told.exchange(true)) return;
  say_now(fmt::format("firn: a single block of {} takes more than half of the budget of {}: the "
                      "whole block must be on the device while any part of it is in use. {}",
                      format_size(bytes), format_size(budget_bytes), advice(false)));
}

void tell_of_own_memory(uint64_t bytes, uint64_t budget_bytes) {
  static std::atomic<uint64_t> total{0};
  static std::atomic<bool> told{false};
  const uint64_t so_far = total.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (so_far <= budget_bytes / 2 || told.load(std::memory_order_relaxed) || told.exchange(true))
    return;
  say_now(fmt::format("firn: the program maps GPU memory by itself (cuMemCreate): {} in all so "
                      "far. Such memory must stay on the device, beside the budget of {}. {}",
                      format_size(so_far), format_size(budget_bytes), advice(true)));
}

}  // namespace firn::preload
