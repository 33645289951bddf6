#include "pytorch_plugin/recipes/product_settings.h"

namespace firn::pytorch {

namespace {

using at::CuBLASReductionOption;
using at::Float32Backend;
using at::Float32Op;
using at::Float32Precision;

// The number's fields, from its lowest bit on.
struct Field {
  unsigned at, bits;
  uint64_t in(uint64_t number) const { return (number >> at) & ((uint64_t{1} << bits) - 1); }
  uint64_t of(uint64_t value) const { return (value & ((uint64_t{1} << bits) - 1)) << at; }
};
constexpr Field tf32{0, 3}, fp16_reduction{3, 3}, bf16_reduction{6, 3}, fp16_accumulation{9, 1},
    cudnn{10, 1}, deterministic{11, 1}, library{12, 4};
static_assert(library.at + library.bits == ProductSettings::bits);

/// The setting itself, which torch tells only together with those above it, from which it may take
/// its value: they are changed for a moment where the value could be theirs. (A product that
/// another thread runs at that moment may see it, the CPU's, too.)
Float32Precision own_precision(Float32Backend backend, Float32Op op) {
  at::Context& torch = at::globalContext();
  const Float32Precision seen = torch.float32Precision(backend, op);
  const bool highest = backend == Float32Backend::GENERIC;
  if (highest) return seen;
  const Float32Backend above = op == Float32Op::ALL ? Float32Backend::GENERIC : backend;
  if (torch.float32Precision(above, Float32Op::ALL) != seen) return seen;
  const Float32Precision own_above = own_precision(above, Float32Op::ALL);
  torch.setFloat32Precision(
      above, Float32Op::ALL,
      seen == Float32Precision::TF32 ? Float32Precision::IEEE : Float32Precision::TF32);
  const bool follows = torch.float32Precision(backend, op) != seen;
  torch.setFloat32Precision(above, Float32Op::ALL, own_above);
  return follows ? Float32Precision::NONE : seen;
}

void set_reduction(uint64_t option, void (at::Context::*set)(bool, bool)) {
  const auto wanted = static_cast<CuBLASReductionOption>(option);
  (at::globalContext().*set)(
      wanted == CuBLASReductionOption::AllowReducedPrecisionWithSplitK,
      wanted != CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK);
}

}  // namespace

bool ProductSettings::are_steady() {
  const at::Context& torch = at::globalContext();
  return !torch.benchmarkCuDNN() && !torch._SMCarveout_EXPERIMENTAL() &&
         !at::NoTF32Guard::should_disable_tf32();
}

uint64_t ProductSettings::now() {
  at::Context& torch = at::globalContext();
  uint64_t precisions = 0;
  // (allowTF32CuBLAS() and its like throw once the program has used torch's newer settings.)
  for (size_t i = 0; i < ops.size(); ++i)
    if (torch.float32Precision(Float32Backend::CUDA, ops[i]) == Float32Precision::TF32)
      precisions |= uint64_t{1} << i;
  return tf32.of(precisions) |
         fp16_reduction.of(static_cast<uint64_t>(torch.allowFP16ReductionCuBLAS())) |
         bf16_reduction.of(static_cast<uint64_t>(torch.allowBF16ReductionCuBLAS())) |
         fp16_accumulation.of(torch.allowFP16AccumulationCuBLAS()) |
         cudnn.of(torch.userEnabledCuDNN()) | deterministic.of(torch.deterministicCuDNN()) |
         library.of(static_cast<uint64_t>(torch.blasPreferredBackend()));
}

/// All but the precisions.
void ProductSettings::set(uint64_t settings) {
  at::Context& torch = at::globalContext();
  set_reduction(fp16_reduction.in(settings), &at::Context::setAllowFP16ReductionCuBLAS);
  set_reduction(bf16_reduction.in(settings), &at::Context::setAllowBF16ReductionCuBLAS);
  torch.setAllowFP16AccumulationCuBLAS(fp16_accumulation.in(settings) != 0);
  torch.setUserEnabledCuDNN(cudnn.in(settings) != 0);
  torch.setDeterministicCuDNN(deterministic.in(settings) != 0);
  if (const auto wanted = static_cast<at::BlasBackend>(library.in(settings));
      wanted != torch.blasPreferredBackend())
    torch.setBlasPreferredBackend(wanted);
}

ProductSettings::ProductSettings(uint64_t then) : benchmark_(at::globalContext().benchmarkCuDNN()) {
  at::Context& torch = at::globalContext();
  for (size_t i = 0; i < ops.size(); ++i) {
    const bool wanted = (tf32.in(then) >> i) & 1;
    if (wanted == static_cast<bool>((tf32.in(before_) >> i) & 1)) continue;
    precision_[i] = own_precision(Float32Backend::CUDA, ops[i]);
    torch.setFloat32Precision(Float32Backend::CUDA, ops[i],
                              wanted ? Float32Precision::TF32 : Float32Precision::IEEE);
  }
  torch.setBenchmarkCuDNN(false);
  set(then);
}

ProductSettings::~ProductSettings() {
  at::Context& torch = at::globalContext();
  for (size_t i = 0; i < ops.size(); ++i)
    if (precision_[i]) torch.setFloat32Precision(Float32Backend::CUDA, ops[i], *precision_[i]);
  torch.setBenchmarkCuDNN(benchmark_);
  set(before_);
}

}  // namespace firn::pytorch
