#include "allocator/simulate/again.h"

#include <algorithm>
#include <array>

namespace firn::simulate {

namespace {

// An operator is here if its results depend on its inputs alone, bit by bit.
//
// Not here, and why:
//   bernoulli_, native_dropout, uniform_, normal_, multinomial ...   draw random numbers
//   cumsum, index_add_, scatter_add_, index_put_, embedding_dense_backward, histc, bincount ...
//                                     add in an order that differs from run to run on CUDA
//   _foreach_*, _fused_*, all_reduce, copies from and to the host    change what outlives them, or
//                                     need others (another rank, the host) to run again too
//   *_backward                        nothing that a backward pass makes is kept for long
//   nonzero, unique, masked_select    the size of the result depends on the data
//   copy_, fill_, zero_, set_, resize_ ...  a trace shows no difference between what they overwrite
//                                     and what they leave
//   empty, empty_like ...             leave bytes as they were
// Batch norms run again without running statistics, which their results do not depend on in
// training. Attention returns the seed and offset that its dropout drew by, and takes them again.
// A matrix product or a convolution takes the algorithm that it took, which is why it gives the
// same bits.
constexpr auto sorted = [] {
  auto names = std::to_array<std::string_view>({
      // Element by element.
      "abs", "add", "add_", "addcdiv", "addcmul", "bitwise_and", "bitwise_not", "bitwise_or",
      "ceil", "clamp", "clamp_max", "clamp_min", "cos", "div", "div_", "elu", "eq", "erf", "exp",
      "exp2", "expm1", "floor", "floor_divide", "fmod", "ge", "gelu", "gt", "hardsigmoid",
      "hardswish", "hardtanh", "le", "leaky_relu", "lerp", "log", "log1p", "log2", "logical_and",
      "logical_not", "logical_or", "lt", "masked_fill", "masked_fill_", "maximum", "minimum",
      "mish", "mul", "mul_", "ne", "neg", "pow", "reciprocal", "relu", "relu_", "remainder",
      "round", "rsqrt", "rsub", "sigmoid", "sign", "silu", "silu_", "sin", "softplus", "sqrt",
      "sub", "sub_", "tanh", "threshold", "tril", "triu", "where",
      // Copies, and results of one value.
      "_to_copy", "arange", "cat", "clone", "constant_pad_nd", "embedding", "flip", "full",
      "full_like", "gather", "index", "index_select", "ones", "ones_like", "reflection_pad2d",
      "repeat", "roll", "scalar_tensor", "stack", "zeros", "zeros_like",
      // Reductions and norms.
      "_fused_rms_norm", "_log_softmax", "_native_batch_norm_legit", "_safe_softmax", "_softmax",
      "amax", "amin", "argmax", "cudnn_batch_norm", "log_softmax", "logsumexp", "mean",
      "miopen_batch_norm", "native_batch_norm", "native_group_norm", "native_layer_norm",
      "rms_norm", "softmax", "sum", "var_mean",
      // Windows.
      "_adaptive_avg_pool2d", "avg_pool2d", "max_pool2d_with_indices", "upsample_bilinear2d",
      "upsample_nearest2d",
      // Products.
      "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_efficient_attention",
      "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
      "addmm", "baddbmm", "bmm", "convolution", "linear", "matmul", "mm",
  });
  std::sort(names.begin(), names.end());
  return names;
}();

/// Without namespace and overload.
std::string_view bare(std::string_view name) {
  if (const size_t at = name.rfind("::"); at != name.npos) name.remove_prefix(at + 2);
  return name.substr(0, name.find('.'));
}

}  // namespace

bool may_run_again(std::string_view name) {
  return std::binary_search(sorted.begin(), sorted.end(), bare(name));
}

bool runs_again_without_state(std::string_view name) {
  return bare(name).find("batch_norm") != name.npos;
}

}  // namespace firn::simulate
