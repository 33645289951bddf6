#include "pytorch_plugin/operators.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>

#include "pytorch_plugin/recipes/remade.h"

namespace firn::pytorch {

namespace {

using Kind = OperatorInfo::Kind;

// Metadata only, although their schemas do not say so.
constexpr std::string_view metadata_only[] = {"aten::_coalesced_",
                                              "aten::_fw_primal",
                                              "aten::_has_compatible_shallow_copy_type",
                                              "aten::_has_same_storage_numel",
                                              "aten::_make_dual",
                                              "aten::_reshape_alias",
                                              "aten::_unpack_dual",
                                              "aten::_unsafe_view",
                                              "aten::_version",
                                              "aten::as_strided_",
                                              "aten::can_cast",
                                              "aten::data",
                                              "aten::dense_dim",
                                              "aten::detach_",
                                              "aten::dim",
                                              "aten::get_device",
                                              "aten::is_coalesced",
                                              "aten::is_complex",
                                              "aten::is_contiguous",
                                              "aten::is_floating_point",
                                              "aten::is_leaf",
                                              "aten::is_pinned",
                                              "aten::is_same_size",
                                              "aten::is_set_to",
                                              "aten::is_signed",
                                              "aten::lift",
                                              "aten::lift_fresh",
                                              "aten::numel",
                                              "aten::output_nr",
                                              "aten::record_stream",
                                              "aten::rename_",
                                              "aten::requires_grad_",
                                              "aten::result_type",
                                              "aten::retain_grad",
                                              "aten::set_",
                                              "aten::set_data",
                                              "aten::size",
                                              "aten::sparse_dim",
                                              "aten::storage_offset",
                                              "aten::stride",
                                              "aten::sym_is_contiguous",
                                              "aten::sym_numel",
                                              "aten::sym_size",
                                              "aten::sym_storage_offset",
                                              "aten::sym_stride",
                                              "aten::unsafe_chunk",
                                              "aten::unsafe_split",
                                              "aten::unsafe_split_with_sizes"};

// Take a tensor for its shape and type.
constexpr std::string_view allocates_only[] = {
    "aten::empty_like", "aten::full_like",    "aten::new_empty",  "aten::new_empty_strided",
    "aten::new_full",   "aten::new_ones",     "aten::new_zeros",  "aten::ones_like",
    "aten::rand_like",  "aten::randint_like", "aten::randn_like", "aten::zeros_like"};

template <size_t n>
bool among(const std::string_view (&names)[n], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool is_core(std::string_view name) {
  return name.starts_with("aten::") || name.starts_with("prims::") || name.starts_with("prim::");
}

/// Only views: every result aliases an argument, nothing is written.
bool is_view(const c10::FunctionSchema& schema) {
  if (schema.returns().empty()) return false;
  for (const c10::Argument& argument : schema.arguments())
    if (argument.alias_info() && argument.alias_info()->isWrite()) return false;
  return std::all_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
    return result.alias_info() && !result.alias_info()->isWrite();
  });
}

uint64_t written_arguments(const c10::FunctionSchema& schema) {
  // Only PyTorch's own operators have annotations that can be relied on.
  if (!is_core(schema.name())) return ~uint64_t{0};
  uint64_t written = 0;
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < std::min<size_t>(arguments.size(), 64); ++i) {
    const bool annotated = arguments[i].alias_info() && arguments[i].alias_info()->isWrite();
    // Batch normalisation updates these without saying so.
    const bool running =
        arguments[i].name() == "running_mean" || arguments[i].name() == "running_var";
    if (annotated || running) written |= uint64_t{1} << i;
  }
  return written;
}

std::mutex mutex;  // guards what follows, and additions to the table
std::set<std::pair<std::string, std::string>>& sliced_names() {
  static auto* names = new std::set<std::pair<std::string, std::string>>;
  return *names;
}

using KnownOperator = OperatorTable::KnownOperator;
constexpr size_t table_fill_most = OperatorTable::size / 2;
size_t table_fill = 0;
const KnownOperator forgotten{};  // tombstone in a bucket

/// The bucket of the operator whose schema's name is at `key`, or the first one that is free.
std::atomic<const KnownOperator*>& bucket_of(const char* key) {
  std::atomic<const KnownOperator*>* free = nullptr;
  for (size_t at = OperatorTable::bucket(key);; at = (at + 1) % OperatorTable::size) {
    std::atomic<const KnownOperator*>& bucket = OperatorTable::buckets[at];
    const KnownOperator* known = bucket.load(std::memory_order_acquire);
    if (known && known->key == key) return bucket;
    if (!free && (!known || known == &forgotten)) free = &bucket;
    if (!known) return *free;
  }
}

class Registrations : public c10::OpRegistrationListener {
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  // Operators found before may still be in use.
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    std::lock_guard lock(mutex);
    std::atomic<const KnownOperator*>& bucket = bucket_of(op.schema().name().c_str());
    if (bucket.load(std::memory_order_relaxed)) bucket.store(&forgotten, std::memory_order_release);
  }
};

const OperatorInfo* add(const at::RecordFunction& record) {
  std::optional<c10::OperatorName> name = record.operator_name();
  if (!name) return nullptr;
  std::optional<c10::OperatorHandle> op = c10::Dispatcher::singleton().findSchema(*name);
  if (!op) return nullptr;
  // TorchScript may report a copy of the schema, whose address does not last.
  const bool lasting = op->schema().name().c_str() == record.name();
  auto* known = new KnownOperator{record.name(), classify(*op)};
  std::lock_guard lock(mutex);
  if (!lasting || table_fill == table_fill_most) {
    static thread_local std::unique_ptr<KnownOperator> passing;
    passing.reset(known);
    return &passing->info;
  }
  std::atomic<const KnownOperator*>& bucket = bucket_of(known->key);
  if (!bucket.load(std::memory_order_relaxed)) ++table_fill;
  bucket.store(known, std::memory_order_release);
  return &known->info;
}

}  // namespace

OperatorInfo classify(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  // PyTorch's own are trusted. Others reach for tensors by a name, in a closure, in an object.
  OperatorInfo info{
      .name = name, .overload = schema.overload_name(), .trusted = is_core(name)};
  {
    std::lock_guard lock(mutex);
    if (sliced_names().count({name, info.overload})) {
      info.kind = Kind::sliced;
      return info;
    }
  }
  const bool only_calls_others =
      is_core(name) && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
      !op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  // Metadata in place: transpose_ and the like. resize_ may move bytes.
  const bool metadata_in_place =
      op.hasTag(at::Tag::inplace_view) && !std::string_view(name).starts_with("aten::resize_");
  if (only_calls_others || metadata_in_place || among(metadata_only, name) ||
      (is_core(name) && is_view(schema)))
    return info;
  const bool allocates = among(allocates_only, name) ||
                         std::string_view(name).starts_with("aten::empty") ||
                         std::string_view(name).starts_with("aten::_empty");
  info.kind = allocates ? Kind::allocates : Kind::uses;
  info.collective = std::string_view(name).starts_with("c10d::");
  info.written = written_arguments(schema);
  info.remade = find_remade(op);
  info.has_autocast = op.hasKernelForDispatchKey(c10::DispatchKey::AutocastCUDA) &&
                      !op.isKernelFallthroughKernel(c10::DispatchKey::AutocastCUDA);
  return info;
}

std::array<std::atomic<const KnownOperator*>, OperatorTable::size> OperatorTable::buckets;

const OperatorInfo* find_operator_further(const at::RecordFunction& record) {
  const char* key = record.name();
  const KnownOperator* known = bucket_of(key).load(std::memory_order_acquire);
  return known && known->key == key ? &known->info : add(record);
}

void watch_registrations() {
  // Kept for the life of the process: the dispatcher may be gone before a destructor here.
  static auto* handle = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Registrations>()));
  (void)handle;
}

void mark_sliced(const c10::OperatorName& name) {
  std::lock_guard lock(mutex);
  sliced_names().insert({name.name, name.overload_name});
}

}  // namespace firn::pytorch
