// Operators that torch has for CUDA alone, written from CPU operators, in the order of operations
// of torch's own CPU code, so that results are those of the CPU in every bit; and products of half
// numbers. They see CPU tensors.
// Registered as CPU kernels of the namespace firn_software, with the schemas of aten.
#include "backing/gpu/software/torch_ops/compositions.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <torch/library.h>

#include <limits>

#include "backing/gpu/software/torch_ops/generators.h"

namespace firn::torch_ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<at::Tensor>;

Tensor with_bias(const Tensor& gates, const OptionalTensor& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

std::vector<Tensor> chunks(const Tensor& gates, int64_t count) { return gates.chunk(count, 1); }

// The workspace holds the gates after their activations: input, forget, cell, output.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const OptionalTensor& input_bias,
                                             const OptionalTensor& hidden_bias) {
  Tensor gates = with_bias(hidden_gates, hidden_bias) + with_bias(input_gates, input_bias);
  const auto parts = chunks(gates, 4);
  const Tensor input = at::sigmoid(parts[0]);
  const Tensor forget = at::sigmoid(parts[1]);
  const Tensor cell = at::tanh(parts[2]);
  const Tensor output = at::sigmoid(parts[3]);
  Tensor cy = (forget * cx).add_(input * cell);
  Tensor hy = output * cy.tanh();
  return {hy, cy, at::cat({input, forget, cell, output}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy,
                                                      const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  const bool from_hy = grad_hy.has_value() && grad_hy->defined();
  const bool from_cy = grad_cy.has_value() && grad_cy->defined();
  if (!from_hy && !from_cy) return {};
  const auto parts = chunks(workspace, 4);
  const Tensor tanh_cy = cy.tanh();
  Tensor grad_cell_state = from_cy ? *grad_cy : at::zeros_like(cy);
  Tensor grad_output = at::zeros_like(cy);
  if (from_hy) {
    grad_output = *grad_hy * tanh_cy;
    const Tensor through = at::tanh_backward(*grad_hy * parts[3], tanh_cy);
    grad_cell_state = from_cy ? grad_cell_state + through : through;
  }
  const Tensor grad_gates = at::cat({at::sigmoid_backward(grad_cell_state * parts[2], parts[0]),
                                     at::sigmoid_backward(grad_cell_state * cx, parts[1]),
                                     at::tanh_backward(grad_cell_state * parts[0], parts[2]),
                                     at::sigmoid_backward(grad_output, parts[3])},
                                    1);
  return {grad_gates, grad_cell_state * parts[1], has_bias ? grad_gates.sum(0) : Tensor()};
}

// The workspace holds reset, update and new gate, the hidden state and the hidden part of the new
// gate (with its bias), as torch's own does.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const OptionalTensor& input_bias,
                                    const OptionalTensor& hidden_bias) {
  const auto input = chunks(with_bias(input_gates, input_bias), 3);
  const auto hidden = chunks(with_bias(hidden_gates, hidden_bias), 3);
  const Tensor reset = (hidden[0] + input[0]).sigmoid_();
  const Tensor update = (hidden[1] + input[1]).sigmoid_();
  const Tensor fresh = input[2].add(hidden[2] * reset).tanh_();
  Tensor hy = (hx - fresh).mul_(update).add_(fresh);
  return {hy, at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  const auto parts = chunks(workspace, 5);
  const Tensor &reset = parts[0], &update = parts[1], &fresh = parts[2], &hx = parts[3];
  const Tensor grad_difference = grad_hy * update;
  const Tensor grad_update = at::sigmoid_backward(grad_hy * (hx - fresh), update);
  const Tensor grad_fresh = at::tanh_backward(grad_hy - grad_difference, fresh);
  const Tensor grad_reset = at::sigmoid_backward(grad_fresh * parts[4], reset);
  const Tensor grad_input_gates = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  const Tensor grad_hidden_gates = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
  return {grad_input_gates, grad_hidden_gates, grad_difference,
          has_bias ? grad_input_gates.sum(0) : Tensor(),
          has_bias ? grad_hidden_gates.sum(0) : Tensor()};
}

std::vector<int64_t> last_dims(const Tensor& input, size_t count) {
  std::vector<int64_t> dims;
  for (size_t back = count; back > 0; --back) {
    dims.push_back(input.dim() - static_cast<int64_t>(back));
  }
  return dims;
}

double default_epsilon(at::ScalarType type) {
  double epsilon = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, type, "rms_norm", [&] {
    epsilon = static_cast<double>(std::numeric_limits<scalar_t>::epsilon());
  });
  return epsilon;
}

std::tuple<Tensor, Tensor> rms_norm(const Tensor& input, at::IntArrayRef normalized_shape,
                                    const OptionalTensor& weight, std::optional<double> eps) {
  const double epsilon = eps.has_value() ? *eps : default_epsilon(input.scalar_type());
  const Tensor wide = input.to(at::toOpMathType(input.scalar_type()));
  const auto dims = last_dims(input, normalized_shape.size());
  const at::Scalar added = wide.scalar_type() == at::kFloat
                               ? at::Scalar(static_cast<double>(static_cast<float>(epsilon)))
                               : at::Scalar(epsilon);
  const Tensor rstd = at::rsqrt(at::pow(wide, 2).mean(dims, true).add_(added));
  Tensor result = wide.mul(rstd);
  if (weight.has_value() && weight->defined()) result = result.mul(*weight);
  return {result.to(input.scalar_type()), rstd};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad_out, const Tensor& input,
                                             at::IntArrayRef normalized_shape, const Tensor& rstd,
                                             const OptionalTensor& weight,
                                             std::array<bool, 2> output_mask) {
  const auto wide_type = at::toOpMathType(input.scalar_type());
  const Tensor grad = grad_out.to(wide_type);
  const Tensor wide = input.to(wide_type);
  const Tensor normal = wide * rstd;
  const bool weighted = weight.has_value() && weight->defined();
  const auto dims = last_dims(input, normalized_shape.size());
  Tensor grad_input;
  Tensor grad_weight;
  if (output_mask[0]) {
    const Tensor through = weighted ? grad * weight->to(wide_type) : grad;
    grad_input = (through - normal * (through * normal).mean(dims, true)) * rstd;
    grad_input = grad_input.to(input.scalar_type());
  }
  if (output_mask[1] && weighted) {
    std::vector<int64_t> outer;
    for (int64_t dim = 0; dim < dims.front(); ++dim) outer.push_back(dim);
    grad_weight = grad * normal;
    if (!outer.empty()) grad_weight = grad_weight.sum(outer);
    grad_weight = grad_weight.to(weight->scalar_type());
  }
  return {grad_input, grad_weight};
}

// As dropout on the CPU: noise of 0 and 1/(1-p), times the input.
std::tuple<Tensor, Tensor> dropout_forward(const Tensor& input, double p,
                                           std::optional<bool> train) {
  if (train.has_value() && !*train) return {input.clone(), at::ones_like(input, at::kBool)};
  if (p == 1) return {at::zeros_like(input), at::zeros_like(input, at::kBool)};
  Tensor noise = at::empty_like(input).bernoulli_(1 - p, present_cpu_generator());
  Tensor mask = noise.to(at::kBool);
  return {input * noise.div_(1 - p), mask};
}

Tensor dropout_backward(const Tensor& grad, const Tensor& mask, double scale) {
  if (scale == 0) return at::zeros_like(grad);
  return grad * mask.to(grad.scalar_type()).div_(1 / scale);
}

// `p` is the probability of keeping an element, as in torch's.
std::tuple<Tensor, Tensor> fused_dropout(const Tensor& input, double p,
                                         const std::optional<at::Generator>&) {
  auto [result, mask] = dropout_forward(input, 1 - p, true);
  return {result, mask.to(at::kByte)};
}

// Products of half numbers: as on a GPU, sums are of single precision and rounded once. (The CPU's
// own kernels take fifty times as long for half as for single numbers.)
template <class... Tensors>
bool all_half(const Tensors&... tensors) {
  return ((tensors.scalar_type() == at::kHalf) && ...);
}

// (Operands of several types are refused, as ever.)
template <class Product, class... Tensors>
Tensor product(Product&& of, const Tensors&... operands) {
  return all_half(operands...) ? of(operands.to(at::kFloat)...).to(at::kHalf) : of(operands...);
}

Tensor mm(const Tensor& a, const Tensor& b) {
  return product([](const Tensor& x, const Tensor& y) { return at::mm(x, y); }, a, b);
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  return product([](const Tensor& x, const Tensor& y) { return at::bmm(x, y); }, a, b);
}

Tensor addmm(const Tensor& added, const Tensor& a, const Tensor& b, const at::Scalar& beta,
             const at::Scalar& alpha) {
  return product([&](const Tensor& z, const Tensor& x, const Tensor& y) {
    return at::addmm(z, x, y, beta, alpha);
  }, added, a, b);
}

Tensor baddbmm(const Tensor& added, const Tensor& a, const Tensor& b, const at::Scalar& beta,
               const at::Scalar& alpha) {
  return product([&](const Tensor& z, const Tensor& x, const Tensor& y) {
    return at::baddbmm(z, x, y, beta, alpha);
  }, added, a, b);
}

// Products whose result has more bits than the operands, which torch has for CUDA alone.
Tensor mm_as(const Tensor& a, const Tensor& b, at::ScalarType type) {
  return torch_ops::mm(a.to(type), b.to(type));
}

Tensor bmm_as(const Tensor& a, const Tensor& b, at::ScalarType type) {
  return torch_ops::bmm(a.to(type), b.to(type));
}

Tensor addmm_as(const Tensor& added, const Tensor& a, const Tensor& b, at::ScalarType type,
                const at::Scalar& beta, const at::Scalar& alpha) {
  return torch_ops::addmm(added.to(type), a.to(type), b.to(type), beta, alpha);
}

Tensor baddbmm_as(const Tensor& added, const Tensor& a, const Tensor& b, at::ScalarType type,
                  const at::Scalar& beta, const at::Scalar& alpha) {
  return torch_ops::baddbmm(added.to(type), a.to(type), b.to(type), beta, alpha);
}

Tensor& mm_into(const Tensor& a, const Tensor& b, at::ScalarType type, Tensor& out) {
  return out.copy_(mm_as(a, b, type));
}

Tensor& bmm_into(const Tensor& a, const Tensor& b, at::ScalarType type, Tensor& out) {
  return out.copy_(bmm_as(a, b, type));
}

Tensor& addmm_into(const Tensor& added, const Tensor& a, const Tensor& b, at::ScalarType type,
                   const at::Scalar& beta, const at::Scalar& alpha, Tensor& out) {
  return out.copy_(addmm_as(added, a, b, type, beta, alpha));
}

Tensor& baddbmm_into(const Tensor& added, const Tensor& a, const Tensor& b, at::ScalarType type,
                     const at::Scalar& beta, const at::Scalar& alpha, Tensor& out) {
  return out.copy_(baddbmm_as(added, a, b, type, beta, alpha));
}

Tensor masked_scale(const Tensor& input, const Tensor& mask, double scale) {
  return input * mask.to(input.scalar_type()) * scale;
}

}  // namespace

const std::vector<Composition>& compositions() {
  static const std::vector<Composition> all = {
      {"_thnn_fused_lstm_cell", false, TORCH_FN(lstm_cell)},
      {"_thnn_fused_lstm_cell_backward_impl", false, TORCH_FN(lstm_cell_backward)},
      {"_thnn_fused_gru_cell", false, TORCH_FN(gru_cell)},
      {"_thnn_fused_gru_cell_backward", false, TORCH_FN(gru_cell_backward)},
      {"_fused_rms_norm", false, TORCH_FN(rms_norm)},
      {"_fused_rms_norm_backward", false, TORCH_FN(rms_norm_backward)},
      {"native_dropout", true, TORCH_FN(dropout_forward)},
      {"native_dropout_backward", false, TORCH_FN(dropout_backward)},
      {"_fused_dropout", true, TORCH_FN(fused_dropout)},
      {"_masked_scale", false, TORCH_FN(masked_scale)},
      {"mm", false, TORCH_FN(mm)},
      {"bmm", false, TORCH_FN(bmm)},
      {"addmm", false, TORCH_FN(addmm)},
      {"baddbmm", false, TORCH_FN(baddbmm)},
      {"mm.dtype", false, TORCH_FN(mm_as)},
      {"bmm.dtype", false, TORCH_FN(bmm_as)},
      {"addmm.dtype", false, TORCH_FN(addmm_as)},
      {"baddbmm.dtype", false, TORCH_FN(baddbmm_as)},
      {"mm.dtype_out", false, TORCH_FN(mm_into)},
      {"bmm.dtype_out", false, TORCH_FN(bmm_into)},
      {"addmm.dtype_out", false, TORCH_FN(addmm_into)},
      {"baddbmm.dtype_out", false, TORCH_FN(baddbmm_into)},
  };
  return all;
}

}  // namespace firn::torch_ops
