#include "backing/store/sum.h"

#include <fmt/format.h>

#include "firn/check.h"

namespace firn {

std::string Sum::words() const { return fmt::format("{:016x}{:016x}", high, low); }

const SumKernel& sum_kernel() {
#ifdef FIRN_SUM_AVX2
  static const bool wide = __builtin_cpu_supports("avx2");
  if (wide) return sum_kernel_avx2;
#endif
  return sum_kernel_generic;
}

void Summer::reset() {
  sum_kernel().reset(state_);
  summed_ = 0;
}

void Summer::sum_to(const std::byte* data, size_t end) {
  if (end <= summed_) return;
  sum_kernel().update(state_, data + summed_, end - summed_);
  summed_ = end;
}

Sum Summer::digest() const {
  FIRN_CHECK(summed_ > 0, "a sum over nothing");
  return sum_kernel().digest(state_);
}

Sum sum_of(const std::byte* data, size_t bytes) {
  Summer summer;
  summer.sum_to(data, bytes);
  return summer.digest();
}

}  // namespace firn
