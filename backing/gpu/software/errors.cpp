// Names and words of the driver's results. Owns nothing.
#include <algorithm>
#include <iterator>

#include "gpu.h"

namespace firn::software {

namespace {
struct Words {
  int value;
  const char *name, *text;
};
constexpr Words all[] = {
#define X(name, value, text) {value, #name, text},
#include "errors.inc"
#undef X
};

CUresult look_up(CUresult result, const char** out, const char* Words::*which) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  const auto* found =
      std::lower_bound(std::begin(all), std::end(all), static_cast<int>(result),
                       [](const Words& words, int value) { return words.value < value; });
  const bool known = found != std::end(all) && found->value == static_cast<int>(result);
  *out = known ? found->*which : nullptr;
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
}  // namespace

FIRN_GPU_API CUresult cuGetErrorName(CUresult result, const char** name) {
  return look_up(result, name, &Words::name);
}
FIRN_GPU_API CUresult cuGetErrorString(CUresult result, const char** text) {
  return look_up(result, text, &Words::text);
}

}  // namespace firn::software
