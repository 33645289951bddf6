// Puts the CPU in the place of torch's CUDA kernels: firn_torch_ops_start(), to be called after
// torch has been loaded and before CUDA is used. Owns the registrations, for the life of the
// process. Call it from one thread.
#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "backing/gpu/software/torch_ops/capture.h"
#include "backing/gpu/software/torch_ops/compositions.h"
#include "backing/gpu/software/torch_ops/copies.h"
#include "backing/gpu/software/torch_ops/cpu_kernel.h"
#include "backing/gpu/software/torch_ops/scratch.h"
#include "backing/gpu/software/torch_ops/stream_work.h"
#include "backing/gpu/software/torch_ops/threads.h"

namespace firn::torch_ops {
namespace {

// Torch's own kernels, which launch nothing: they make, view and describe tensors, or copy by
// cudaMemcpy.
const std::set<std::string> kept = {
    "aten::empty.memory_format",
    "aten::empty_strided",
    "aten::view",
    "aten::as_strided",
    "aten::_reshape_alias",
    "aten::set_",
    "aten::set_.source_Storage",
    "aten::set_.source_Storage_storage_offset",
    "aten::set_.source_Tensor",
    "aten::resize_",
    "aten::unfold",
    "aten::record_stream",
    "aten::is_pinned",
    "aten::_pin_memory",
    "aten::_local_scalar_dense",
    "aten::_efficientzerotensor",
    "aten::_use_cudnn_ctc_loss",
    "aten::_use_cudnn_ctc_loss.Tensor",
    "aten::_use_miopen_ctc_loss",
    "aten::_use_miopen_ctc_loss.Tensor",
    "aten::copy_",
    "aten::_foreach_copy_",
    "aten::_fused_sdp_choice",
    "aten::_nested_tensor_from_mask",
};

// Torch's own for sparse tensors (COO) that launch nothing, or only what dense operators launch.
const std::set<std::string> kept_sparse = {
    "aten::_coalesced_",
    "aten::_dimI",
    "aten::_dimV",
    "aten::_indices",
    "aten::_nnz",
    "aten::_sparse_coo_tensor_with_dims",
    "aten::_sparse_coo_tensor_with_dims_and_tensors",
    "aten::_values",
    "aten::clone",
    "aten::copy_",
    "aten::copy_sparse_to_sparse_",
    "aten::dense_dim",
    "aten::empty.memory_format",
    "aten::empty_like",
    "aten::indices",
    "aten::is_coalesced",
    "aten::resize_as_sparse_",
    "aten::sparse_dim",
    "aten::sparse_resize_",
    "aten::sparse_resize_and_clear_",
    "aten::values",
    "aten::zero_",
};

// Composite operators that choose a backend by device: cut off before they choose.
const char* const composites[] = {"aten::convolution", "aten::_convolution"};

// Namespaces whose operators work between processes and devices: torch's own code does the copies
// that they need (a collective by gloo goes through host memory).
const std::set<std::string> left_alone = {"c10d", "symm_mem"};

class Quiet final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

std::string error_text;

int64_t choose_maths(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                     const std::optional<at::Tensor>&, double, bool, std::optional<double>, bool) {
  return static_cast<int64_t>(at::SDPBackend::math);
}

class Registrar {
 public:
  void add_all() {
    auto& dispatcher = c10::Dispatcher::singleton();
    add_compositions();
    add_present(/*refuse=*/true);
    for (const char* name : composites) {
      add(dispatcher.findSchemaOrThrow(name, ""), /*refuse=*/false);
    }
    add_sparse();
    register_copies(library("aten"));
    library("aten").impl("_fused_sdp_choice", TORCH_FN(choose_maths));
    listening_ = std::make_unique<c10::RegistrationHandleRAII>(
        dispatcher.addRegistrationListener(std::make_unique<Listener>()));
    operators_registered = false;  // the listener has heard of the existing ones
  }

  /// Adds operators that have come since. One without a CPU kernel keeps its own: it may be in
  /// Python.
  void add_late() {
    const std::lock_guard lock(mutex_);
    if (operators_registered.exchange(false)) add_present(/*refuse=*/false);
  }

 private:
  struct Listener final : c10::OpRegistrationListener {
    void onOperatorRegistered(const c10::OperatorHandle&) override { operators_registered = true; }
    void onOperatorDeregistered(const c10::OperatorHandle&) override {}
  };

  void add_present(bool refuse) {
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findOp(name);
      if (!op.has_value() || !op->hasSchema() || seen_.count(toString(name)) != 0) continue;
      if (!op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) continue;
      seen_.insert(toString(name));
      add(*op, refuse);
    }
  }

  torch::Library& library(const std::string& space,
                          c10::DispatchKey key = c10::DispatchKey::CUDA) {
    auto& known = libraries_[{space, key}];
    if (known == nullptr) {
      known =
          std::make_unique<torch::Library>(torch::Library::IMPL, space, key, __FILE__, __LINE__);
    }
    return *known;
  }

  void add_sparse() {
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findOp(name);
      const std::string full = toString(name);
      if (!op.has_value() || !op->hasSchema() || !full.starts_with("aten::") ||
          kept_sparse.count(full) != 0 ||
          !op->hasKernelForDispatchKey(c10::DispatchKey::SparseCUDA) ||
          !op->hasComputedKernelForDispatchKey(c10::DispatchKey::SparseCPU))
        continue;
      library("aten", c10::DispatchKey::SparseCUDA)
          .impl(full.substr(std::string("aten::").size()).c_str(),
                torch::CppFunction::makeFromBoxedFunctor(
                    std::make_unique<CpuKernel>(*op, *op, c10::DispatchKey::SparseCPU)));
    }
  }

  void add_compositions() {
    auto& dispatcher = c10::Dispatcher::singleton();
    definitions_ = std::make_unique<torch::Library>(torch::Library::DEF, "firn_software",
                                                    std::nullopt, __FILE__, __LINE__);
    for (const Composition& composition : compositions()) {
      const std::string full = composition.name, base = full.substr(0, full.find('.'));
      const std::string overload = base.size() < full.size() ? full.substr(base.size() + 1) : "";
      const auto op = dispatcher.findOp({"aten::" + base, overload});
      if (!op.has_value()) continue;  // another release of torch
      const std::string ours = "firn_software::" + base;
      definitions_->def(op->schema().cloneWithName(ours, overload));
      composition.add(*definitions_);
      targets_.emplace("aten::" + full,
                       std::pair(dispatcher.findSchemaOrThrow(ours.c_str(), overload.c_str()),
                                 composition.draws));
    }
  }

  void add(const c10::OperatorHandle& op, bool refuse) {
    const c10::OperatorName& name = op.operator_name();
    const std::string space(name.getNamespace().value_or("aten"));
    const std::string full = toString(name);
    if (left_alone.count(space) != 0 || kept.count(full) != 0) return;
    std::string within = full.substr(space.size() + 2);
    const auto target = targets_.find(full);
    if (target != targets_.end()) {
      const auto& [handle, draws] = target->second;
      auto kernel = std::make_unique<CpuKernel>(op, handle);
      if (draws) kernel->set_draws();
      implement(space, within, std::move(kernel));
    } else if (op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) {
      implement(space, within, std::make_unique<CpuKernel>(op, op));
    } else if (refuse) {
      implement(space, within, std::make_unique<RefusedKernel>());
    }
  }

  template <class Kernel>
  void implement(const std::string& space, const std::string& name,
                 std::unique_ptr<Kernel> kernel) {
    library(space).impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
  }

  std::mutex mutex_;
  std::set<std::string> seen_;
  std::unique_ptr<c10::RegistrationHandleRAII> listening_;
  std::map<std::pair<std::string, c10::DispatchKey>, std::unique_ptr<torch::Library>> libraries_;
  std::unique_ptr<torch::Library> definitions_;
  std::map<std::string, std::pair<c10::OperatorHandle, bool>> targets_;
};

Registrar* registrar = nullptr;

}  // namespace

std::atomic<bool> operators_registered{false};

void add_late_operators() {
  if (registrar == nullptr) return;
  Quiet quiet;
  const c10::WarningUtils::WarningHandlerGuard no_override_warnings(&quiet);
  registrar->add_late();
}

}  // namespace firn::torch_ops

extern "C" {

/// Puts the CPU's kernels in place. 0, or -1 with firn_torch_ops_error() set. Again: does nothing.
__attribute__((visibility("default"))) int firn_torch_ops_start() {
  using namespace firn::torch_ops;
  static bool started = false;
  if (started) return 0;
  try {
    open_software_gpu();
    watch_captures();
    Quiet quiet;
    const c10::WarningUtils::WarningHandlerGuard no_override_warnings(&quiet);
    auto* const made = new Registrar;
    made->add_all();
    registrar = made;
    install_scratch();
    follow_the_main_thread();
    at::Context& context = at::globalContext();
    context.setUserEnabledCuDNN(false);
    context.setSDPUseFlash(false);
    context.setSDPUseMemEfficient(false);
    context.setSDPUseCuDNN(false);
    started = true;
    return 0;
  } catch (const std::exception& error) {
    error_text = error.what();
    return -1;
  }
}

/// Why firn_torch_ops_start() failed.
__attribute__((visibility("default"))) const char* firn_torch_ops_error() {
  return firn::torch_ops::error_text.c_str();
}

}  // extern "C"
