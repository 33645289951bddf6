#include "pytorch_plugin/scopes.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAStream.h>

#include <pthread.h>

#include <cstdio>

#include "allocator/record/trace.h"
#include "allocator/runtime/runtime.h"
#include "pytorch_plugin/firn_allocator.h"
#include "pytorch_plugin/lines.h"
#include "pytorch_plugin/python_state.h"
#include "pytorch_plugin/stalls.h"
#include "pytorch_plugin/torch_stream.h"

namespace firn::pytorch {

namespace {

// Far enough back for the temporaries of an operator; a free further back is finished later.
constexpr size_t forget_most = 64;
// One that calls so many others is made of them (a recurrent network, say), and has no kernel that
// would use their memory: keeping all of that on the device would run out of memory.
constexpr unsigned unseen_most = 16;

// torch lets a storage throw when its address is asked for, and has no call that ends that.
bool& throws(c10::StorageImpl& storage);
template <bool c10::StorageImpl::*member>
struct Reach {
  friend bool& throws(c10::StorageImpl& storage) { return storage.*member; }
};
template struct Reach<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace

// In the child of a fork the other threads are gone, and their scopes with them.
const bool ThreadScopes::told_of_forks =
    pthread_atfork(nullptr, nullptr, [] { of_cell_ = {}; }) == 0;

/// (The thread has its number before this is made, and keeps it until after this has ended.)
ThreadScopes& ThreadScopes::find(unsigned cell) {
  static thread_local ThreadScopes scopes;
  if (told_of_forks && cell < cells_own) of_cell_[scopes.cell_ = cell] = &scopes;
  return scopes;
}

ThreadScopes::~ThreadScopes() {
  if (cell_ < cells_own) of_cell_[cell_] = nullptr;
}

/// `key` is not the innermost scope's.
void ThreadScopes::leave_open(const void* key) {
  for (size_t i = scopes_.size(); i-- > 0;) {
    if (scopes_[i].key != key) continue;
    scopes_.resize(i);
    break;
  }
}

namespace {
int end_unseen_of_this_thread(void*) {
  ThreadScopes::mine().end_unseen();
  return 0;
}

/// Operators below autograd's kernels are called with it excluded. (In inference mode all are.)
bool below_autograd() {
  return !c10::InferenceMode::is_enabled() &&
         c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradCUDA);
}
}  // namespace

void ThreadScopes::begin_unseen() {
  unseen_by_python_ = call_between_operators(end_unseen_of_this_thread);
  unseen_ = unseen_by_python_ || below_autograd();
  unseen_left_ = unseen_most;
}

void ThreadScopes::end_unseen() {
  if (!std::exchange(unseen_, false) || inside()) return;
  left_outermost();
}

/// At the end of an operator that was not seen inside another.
bool ThreadScopes::in_unseen() {
  if (!unseen_by_python_ && !below_autograd()) unseen_ = false;
  if (--unseen_left_ == 0) unseen_ = false;
  return unseen_;
}

void ThreadScopes::left_outermost() {
  if (unseen_ && in_unseen()) [[unlikely]]
    return;
  // (In the child of a fork the recorder is the parent's.)
  if (recorded_.recorder && Runtime::get()) recorded_.recorder->end(recorded_);
  if (!recorded_.name.empty()) recorded_ = {};
  release_all();
  if (!refused_.empty()) [[unlikely]]
    grant_again();
  if (lines_due_) [[unlikely]]
    tell_lines();
  if (!trouble_.empty()) {
    // Nothing threw it: the operator neither allocated nor read the storage through torch.
    std::fprintf(stderr, "firn: %s\n", trouble_.c_str());
    trouble_.clear();
  }
}

void ThreadScopes::note_stream(CUstream stream, Runtime::ContextOf context) {
  const Other other{stream, context(stream)};
  for (const Other& known : others_)
    if (known.stream == other.stream && known.context == other.context) return;
  others_.push_back(other);
}

/// Notes uses on all streams that were noted, except the one that `holds` are held for.
void ThreadScopes::use_on_others(Engine& engine, std::span<const Hold> holds, CUstream held_for) {
  for (const Other& other : others_)
    if (const CUstream key = engine.stream_of(other.stream, other.context); key != held_for)
      engine.used_on(holds, key);
}

void ThreadScopes::release_all() {
  // In the child of a fork the engines are gone.
  if (Runtime::get())
    for (; !groups_.empty(); groups_.pop_back()) {  // (one that throws is tried again, alone)
      const auto& group = groups_.back();
      const std::span<const Hold> holds{holds_.data() + group.begin, holds_.size() - group.begin};
      if (!others_.empty()) [[unlikely]]
        use_on_others(*group.engine, holds, group.stream);
      group.engine->release_many(holds, group.stream);
      holds_.resize(group.begin);
    }
  groups_.clear();
  others_.clear();
  holds_.clear();
  bases_.clear();
}

// Python may answer a tensor's device() and layout() (a wrapper subclass): slowly, or with an
// exception. Its keys and its storage tell without asking; the tensors behind such a wrapper are
// seen when it calls operators.
void ThreadScopes::touch(c10::TensorImpl* tensor, Access access, bool uses) {
  const c10::DispatchKeySet keys = tensor->key_set();
  if (!keys.has_backend(c10::BackendComponent::CUDABit)) return;
  if (keys.has_any(c10::sparse_ks | c10::sparse_csr_ks |
                   c10::DispatchKeySet(c10::DispatchKey::Quantized))) [[unlikely]]
    touch_parts(tensor, access, uses);
  if (tensor->has_storage())
    touch_storage(tensor->unsafe_storage().unsafeGetStorageImpl(), access, uses);
}

/// Tensors that a tensor of another kind keeps beside a storage, or in its place. (A wrapper
/// subclass has the keys of such a kind without being one.)
void ThreadScopes::touch_parts(c10::TensorImpl* tensor, Access access, bool uses) {
  auto part = [&](const at::Tensor& each) { touch(each.unsafeGetTensorImpl(), access, uses); };
  if (auto* sparse = dynamic_cast<at::SparseTensorImpl*>(tensor)) {
    part(sparse->indices());
    part(sparse->values());
  } else if (auto* compressed = dynamic_cast<at::SparseCsrTensorImpl*>(tensor)) {
    part(compressed->compressed_indices());
    part(compressed->plain_indices());
    part(compressed->values());
  } else if (auto* quantized = dynamic_cast<at::QTensorImpl*>(tensor)) {
    access = Access::read;
    if (auto* channels =
            dynamic_cast<at::PerChannelAffineQuantizer*>(quantized->quantizer().get())) {
      part(channels->scales());
      part(channels->zero_points());
    }
  }
}

void ThreadScopes::touch_storage(c10::StorageImpl* storage, Access access, bool uses) {
  // (A fake tensor says CUDA and has a storage of another device.)
  if (!storage || storage->device_type() != c10::kCUDA) return;
  const void* base = storage->_mutable_data_ptr_no_checks().get();
  if (!base) return;
  const int device = storage->device().index();
  if (device != touched_device_) see_device(device);
  if (!engine_) return;
  record::Recorder* recorder = nullptr;
  if (uses && recording()) [[unlikely]]
    recorder = Runtime::get()->recorder(device);
  if (recorder) recorder->pause(recorded_);
  const Code code = touch_memory(base, access);
  if (recorder) {
    recorder->uses(recorded_, base, access == Access::write);
    recorded_stream_ = stream_;
  }
  if (code != Code::ok && uses && !may_be_cut_) [[unlikely]]
    refuse(storage, code);
}

/// The storage's address is an error from here on, so that no kernel runs on missing memory. For
/// good if its bytes are lost, else until the operator has ended.
void ThreadScopes::refuse(c10::StorageImpl* storage, Code code) {
  const char* kind = code == Code::out_of_memory ? "CUDA out of memory. Firn: " : "firn: ";
  if (throws(*storage)) return;
  std::optional<std::string> words = storage->get_extra_meta().custom_data_ptr_error_msg_;
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(kind + trouble_);
  if (code != Code::lost)
    refused_.push_back({c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage),
                        std::move(words)});
}

void ThreadScopes::grant_again() {
  trouble_.clear();  // thrown at those who asked for an address; nothing else went wrong
  for (Refused& each : std::exchange(refused_, {})) {
    throws(*each.storage) = false;
    each.storage->get_extra_meta().custom_data_ptr_error_msg_ = std::move(each.words);
    // (Other notes of its address follow from this.)
    c10::DataPtr same = std::move(each.storage->_mutable_data_ptr_no_checks());
    each.storage->set_data_ptr_noswap(std::move(same));
  }
}

/// From here on, until begin_touches(), touches are of this device.
void ThreadScopes::see_device(int device) {
  Runtime* runtime = Runtime::get();
  engine_ = runtime ? runtime->opened(device) : nullptr;
  touched_device_ = device;
  if (!engine_) return;
  stream_ = current_stream(*engine_, device);
  pools_ = &installed_allocator()->pools();
}

CUstream ThreadScopes::current_stream(Engine& engine, int device) {
  const c10::cuda::CUDAStream stream =
      c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device));
  const c10::StreamId id = stream.id();
  if (device == known_device_ && id == known_id_) return known_stream_;
  const CUstream handle = tell_stream(engine, stream);
  if (keeps_handle(id)) known_device_ = device, known_id_ = id, known_stream_ = handle;
  return handle;
}

/// Touches memory of the device seen last, for work on its current stream.
Code ThreadScopes::touch_memory(const void* base, Access access) {
  Result<Hold> hold = engine_->touch(base, stream_, access);
  if (!hold) [[unlikely]]
    return touch_failed(base, access, hold.error());
  if (hold->block) keep_used(*hold, base);
  return Code::ok;
}

void ThreadScopes::keep_used(Hold hold, const void* base) {
  keep(*engine_, hold, stream_, base);
  if (!pools_->recording()) [[likely]]
    return;
  const Result<void> pinned = pools_->used_in_capture(*engine_, touched_device_, base, stream_);
  if (!pinned) trouble_ = describe(pinned.error());
}

Code ThreadScopes::touch_failed(const void* base, Access access, const Error& error) {
  if (error.code != Code::out_of_memory) {
    trouble_ = describe(error);
    return error.code;
  }
  if (may_be_cut_) {
    trouble_ = describe(error);
    short_ = true;
    return error.code;
  }
  // The operator has chosen its kernel and cannot be stopped from here: let it run slowly.
  Result<Hold> hold = engine_->touch_anyway(base, stream_, access);
  if (!hold) {
    trouble_ = describe(hold.error());
    short_ = hold.error().code == Code::out_of_memory;
    if (short_) engine_->count_refusal();
    return hold.error().code;
  }
  if (hold->block) keep_used(*hold, base);
  return Code::ok;
}

void ThreadScopes::touch_address(const void* pointer) {
  begin_touches();
  Runtime* runtime = Runtime::get();
  Engine* engine = runtime ? runtime->around(pointer) : nullptr;
  for (int device = 0; engine && device < runtime->device_count(); ++device)
    if (runtime->opened(device) == engine) {
      see_device(device);
      (void)touch_memory(pointer, Access::write);
    }
}

void ThreadScopes::keep_held(const char* reason) {
  for (size_t group = 0; group < groups_.size(); ++group)
    for (size_t i = groups_[group].begin; i < end_of(group); ++i)
      if (Result<void> kept = groups_[group].engine->give_address(bases_[i], reason); !kept)
        trouble_ = describe(kept.error());
}

void ThreadScopes::arguments_touched() {
  if (recorded_.recorder) recorded_.recorder->resume(recorded_, recorded_stream_);
}

void ThreadScopes::before_allocation() {
  if (recorded_.recorder) recorded_.recorder->pause(recorded_);
}

void ThreadScopes::hold_new(Engine& engine, int device, void* pointer, CUstream stream) {
  if (noting.load(std::memory_order_relaxed)) [[unlikely]]
    note_new(engine, device, pointer, stream);
  if (scopes_.empty()) {
    // It may belong to an operator under way that was not seen to begin.
    if (!unseen_) engine.allocated_outside(pointer);
    if (lines_due_) [[unlikely]]
      tell_lines();
    return;
  }
  Hold hold = engine.hold_new(pointer, scopes_.front().info->name.c_str());
  if (hold.block) keep(engine, hold, stream, pointer);
}

void ThreadScopes::note_new(Engine& engine, int device, void* pointer, CUstream stream) {
  record::Recorder* recorder = recording() ? Runtime::get()->recorder(device) : nullptr;
  if (recorder && !scopes_.empty()) {
    recorder->makes(recorded_, pointer);
    recorder->resume(recorded_, stream);
    if (TraceWriter* trace = Runtime::get()->trace())
      trace->row(wall_clock().now_ns(), "made", device, 0, reinterpret_cast<uint64_t>(pointer), 0,
                 scopes_.front().info->name);
  }
  if (!(noting.load(std::memory_order_relaxed) & noting_makers)) return;
  made_.push_back({&engine, pointer});
  lines_due_ = true;
}

void ThreadScopes::forget(const void* pointer) {
  const size_t end = bases_.size() > forget_most ? bases_.size() - forget_most : 0;
  size_t group = groups_.size();
  for (size_t i = bases_.size(); i-- > end;) {
    if (bases_[i] != pointer) continue;
    while (groups_[group - 1].begin > i) --group;
    const Group& of = groups_[group - 1];
    if (!others_.empty()) use_on_others(*of.engine, {&holds_[i], 1}, of.stream);
    of.engine->release(holds_[i], of.stream);
    holds_.erase(holds_.begin() + static_cast<ptrdiff_t>(i));
    bases_.erase(bases_.begin() + static_cast<ptrdiff_t>(i));
    for (size_t later = group; later < groups_.size(); ++later) --groups_[later].begin;
  }
}

const char* ThreadScopes::stalled(Engine& engine, const Wait& wait) {
  const OperatorInfo* info = scopes_.empty() ? nullptr : scopes_.back().info;
  note_stall(info, wait.ns);
  ++waits_.times;
  waits_.ns += wait.ns;
  if (wait.ns >= waits_.longest.ns) {
    waits_.engine = &engine;
    waits_.in = info;
    waits_.longest = wait;
  }
  lines_due_ = true;
  return info ? info->name.c_str() : nullptr;
}

/// Nothing is held here: see note_call_site().
void ThreadScopes::tell_lines() {
  lines_due_ = false;
  const Waits waits = std::exchange(waits_, {});
  const std::vector<Made> made = std::exchange(made_, {});
  std::string site = waits.times ? note_call_site(waits.in, waits.times, waits.ns) : std::string();
  Runtime* runtime = Runtime::get();
  if (!runtime) return;  // the child of a fork
  if (TraceWriter* trace = site.empty() ? nullptr : runtime->trace())
    trace->row(wall_clock().now_ns(), "site", 0, TraceWriter::thread(), waits.times, waits.ns,
               site);
  if (waits.times && (noting.load(std::memory_order_relaxed) & noting_makers))
    waits.engine->waited({.name = waits.in ? std::string_view(waits.in->name) : "",
                          .site = site,
                          .waits = waits.times,
                          .ns = waits.ns,
                          .longest = waits.longest});
  if (made.empty()) return;
  if (site.empty()) site = line_of_thread("an allocation");
  for (const auto& [engine, block] : made) engine->made_by(block, site);
}

void look_at_storm(bool asked) {
  static std::atomic<int> storms{0};  // of several devices
  const bool any = (asked ? ++storms : --storms) > 0;
  note(noting_makers, any);
  ask_for_call_sites(Asker::storm, any);
}

std::string ThreadScopes::take_trouble() {
  short_ = false;
  return std::exchange(trouble_, {});
}

void ThreadScopes::throw_trouble() {
  const bool memory = short_;
  const std::string trouble = take_trouble();
  // An operator that may be cut is done in parts: its program hears of no refusal.
  const bool heard = memory && !trouble.empty() && !may_be_cut_;
  if (Runtime* runtime = heard ? Runtime::get() : nullptr) runtime->refused_memory(trouble);
  TORCH_CHECK_WITH(OutOfMemoryError, trouble.empty() || !memory, "CUDA out of memory. Firn: ",
                   trouble);
  TORCH_CHECK(trouble.empty(), "firn: ", trouble);
}

}  // namespace firn::pytorch
