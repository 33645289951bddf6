#include "pytorch_plugin/recipes/remade.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>

namespace firn::pytorch {

namespace {

// On the list: what reads nothing but its arguments, draws no random numbers, adds in one order,
// and returns tensors in storages of their own, all of whose bytes it writes. Whether a call of it
// is kept depends on its arguments, too: see recipe.h.
constexpr std::string_view pointwise[] = {
    "aten::_prelu_kernel",     "aten::abs",               "aten::add.Tensor",
    "aten::addcdiv",           "aten::addcmul",           "aten::atan2",
    "aten::bitwise_and.Tensor", "aten::bitwise_not",      "aten::bitwise_or.Tensor",
    "aten::bitwise_xor.Tensor", "aten::ceil",             "aten::clamp",
    "aten::clamp.Tensor",      "aten::clamp_max",         "aten::clamp_min",
    "aten::cos",               "aten::cosh",              "aten::div.Tensor",
    "aten::div.Tensor_mode",   "aten::elu",               "aten::eq.Scalar",
    "aten::eq.Tensor",         "aten::erf",               "aten::erfc",
    "aten::exp",               "aten::exp2",              "aten::expm1",
    "aten::floor",             "aten::fmod.Tensor",       "aten::ge.Scalar",
    "aten::ge.Tensor",         "aten::gelu",              "aten::glu",
    "aten::gt.Scalar",         "aten::gt.Tensor",         "aten::hardshrink",
    "aten::hardsigmoid",       "aten::hardswish",         "aten::hardtanh",
    "aten::isnan",             "aten::le.Scalar",         "aten::le.Tensor",
    "aten::leaky_relu",        "aten::lerp.Scalar",       "aten::lerp.Tensor",
    "aten::log",               "aten::log10",             "aten::log1p",
    "aten::log2",              "aten::log_sigmoid_forward", "aten::logical_and",
    "aten::logical_not",       "aten::logical_or",        "aten::logical_xor",
    "aten::logit",             "aten::lt.Scalar",         "aten::lt.Tensor",
    "aten::masked_fill.Scalar", "aten::masked_fill.Tensor", "aten::maximum",
    "aten::minimum",           "aten::mish",              "aten::mul.Tensor",
    "aten::ne.Scalar",         "aten::ne.Tensor",         "aten::neg",
    "aten::pow.Tensor_Scalar", "aten::pow.Tensor_Tensor", "aten::reciprocal",
    "aten::relu",              "aten::remainder.Tensor",  "aten::round",
    "aten::rsqrt",             "aten::rsub.Scalar",       "aten::sigmoid",
    "aten::sign",              "aten::silu",              "aten::sin",
    "aten::sinh",              "aten::softplus",          "aten::softshrink",
    "aten::sqrt",              "aten::sub.Tensor",        "aten::tan",
    "aten::tanh",              "aten::threshold",         "aten::trunc",
    "aten::where.self"};

constexpr std::string_view copies[] = {
    "aten::_to_copy", "aten::cat",    "aten::clone", "aten::constant_pad_nd",
    "aten::embedding", "aten::flip",  "aten::gather", "aten::index_select",
    "aten::repeat",   "aten::roll",   "aten::stack", "aten::tril",
    "aten::triu",     "aten::upsample_nearest2d"};

// Each sum has one order, chosen by shapes, strides and the alignment of addresses, which are the
// same when it is made again (of results: the allocator's, 512 bytes at least).
constexpr std::string_view sums[] = {
    "aten::_adaptive_avg_pool2d", "aten::_fused_rms_norm",   "aten::_log_softmax",
    "aten::_softmax",             "aten::amax",              "aten::amin",
    "aten::avg_pool2d",           "aten::max_pool2d_with_indices", "aten::mean",
    "aten::mean.dim",             "aten::native_batch_norm", "aten::native_group_norm",
    "aten::native_layer_norm",    "aten::sum",               "aten::sum.dim_IntList",
    "aten::upsample_bilinear2d"};

constexpr std::string_view products[] = {"aten::addmm", "aten::baddbmm", "aten::bmm",
                                         "aten::convolution", "aten::mm"};

struct Absent {
  std::string_view name, why;
};
constexpr std::string_view random = "random", atomics = "adds in no fixed order (atomics)",
                           unproved = "no kernel on the software GPU: not proved yet",
                           in_place = "writes an argument", ties = "equal elements in any order",
                           by_data = "the result's size depends on the data",
                           alias = "the result may be a view of an argument",
                           scratch = "returns state that a library keeps";
// In this order: what comes up in training, and a reader may look for here.
constexpr Absent absent[] = {
    {"aten::bernoulli", random},
    {"aten::multinomial", random},
    {"aten::native_dropout", random},
    {"aten::normal.Tensor_Tensor", random},
    {"aten::rand_like", random},
    {"aten::randn_like", random},
    {"aten::rrelu_with_noise", random},
    {"aten::_embedding_bag", atomics},
    {"aten::bincount", atomics},
    {"aten::cumsum", atomics},
    {"aten::embedding_dense_backward", atomics},
    {"aten::index_add", atomics},
    {"aten::index_put", atomics},
    {"aten::max_pool2d_with_indices_backward", atomics},
    {"aten::scatter_add", atomics},
    {"aten::upsample_bilinear2d_backward", atomics},
    {"aten::_scaled_dot_product_cudnn_attention", unproved},
    {"aten::_scaled_dot_product_efficient_attention", unproved},
    {"aten::_scaled_dot_product_flash_attention", unproved},
    {"aten::cudnn_batch_norm", unproved},
    {"aten::cudnn_convolution", unproved},
    {"aten::add_.Tensor", in_place},
    {"aten::copy_", in_place},
    {"aten::mul_.Tensor", in_place},
    {"aten::relu_", in_place},
    {"aten::kthvalue", ties},
    {"aten::max.dim", ties},
    {"aten::sort", ties},
    {"aten::topk", ties},
    {"aten::index.Tensor", by_data},
    {"aten::masked_select", by_data},
    {"aten::nonzero", by_data},
    {"aten::_unique2", by_data},
    {"aten::expand", alias},
    {"aten::lift", alias},
    {"aten::resolve_conj", alias},
    {"aten::view", alias},
    {"aten::_cudnn_rnn", scratch},
    {"aten::_thnn_fused_lstm_cell", scratch}};

template <size_t n>
bool has(const std::string_view (&names)[n], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

struct Remade {
  std::mutex mutex;
  std::map<std::string, RemadeOperator*, std::less<>> seen;
};
Remade& remade() {
  static auto* const all = new Remade;  // operators run until the very end
  return *all;
}

/// The arguments of `op`, then the results of `op` as out arguments?
bool writes_results_of(const c10::OperatorHandle& op, const c10::OperatorHandle& into) {
  const auto& given = op.schema().arguments();
  const auto& all = into.schema().arguments();
  if (all.size() != given.size() + op.schema().returns().size()) return false;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool written = all[i].alias_info() && all[i].alias_info()->isWrite();
    if (i < given.size() ? written || all[i].name() != given[i].name() ||
                               *all[i].type() != *given[i].type()
                         : !written || all[i].type()->kind() != c10::TypeKind::TensorType)
      return false;
  }
  return into.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

std::optional<c10::OperatorHandle> find_into(const c10::OperatorHandle& op) {
  const std::string& own = op.schema().overload_name();
  for (const std::string& overload :
       {std::string("out"), own + "_out", std::string("out_mode"), std::string("IntList_out"),
        std::string("output")})
    if (auto into = c10::Dispatcher::singleton().findSchema({op.schema().name(), overload});
        into && writes_results_of(op, *into))
      return into;
  return std::nullopt;
}

}  // namespace

const RemadeOperator* find_remade(const c10::OperatorHandle& op) {
  const std::string name = toString(op.operator_name());
  const bool product = has(products, name);
  if (!product && !has(pointwise, name) && !has(copies, name) && !has(sums, name)) return nullptr;
  std::lock_guard lock(remade().mutex);
  RemadeOperator*& known = remade().seen[name];
  if (!known) {
    const bool batch_norm = name == "aten::native_batch_norm";
    known = new RemadeOperator{op, batch_norm ? std::nullopt : find_into(op), product,
                               batch_norm, "firn::remake(" + op.schema().name() + ")"};
  }
  return known;
}

std::string remade_text() {
  std::string text;
  const auto add = [&text](std::string_view name, std::string_view when) {
    text.append(name).append("\t").append(when);
    const auto found = remade().seen.find(name);
    if (found != remade().seen.end()) {
      const RemadeOperator& seen = *found->second;
      text += std::string("\t") + (seen.into ? "1" : "0") + "\t" + std::to_string(seen.kept) +
              "\t" + std::to_string(seen.made_again);
    }
    text += "\n";
  };
  std::lock_guard lock(remade().mutex);
  for (std::string_view name : pointwise) add(name, "always");
  for (std::string_view name : copies) add(name, "always");
  for (std::string_view name : sums) add(name, "always");
  for (std::string_view name : products) add(name, "products");
  for (const Absent& each : absent) add(each.name, each.why);
  return text;
}

}  // namespace firn::pytorch
