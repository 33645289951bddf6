#include "pytorch_plugin/scopes.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>

#include "allocator/runtime.h"
#include "pytorch_plugin/stalls.h"
#include "pytorch_plugin/torch_stream.h"

namespace firn::pytorch {

namespace {

// Far enough back for the temporaries of an operator; a free further back is finished later.
constexpr size_t forget_most = 64;

}  // namespace

ThreadScopes& ThreadScopes::mine() {
  static thread_local ThreadScopes scopes;
  return scopes;
}

void ThreadScopes::leave(const void* key) {
  for (size_t i = scopes_.size(); i-- > 0;) {
    if (scopes_[i].key != key) continue;
    scopes_.resize(i);
    break;
  }
  if (!scopes_.empty()) return;
  // (In the child of a fork the recorder is the parent's.)
  if (recorded_.recorder && Runtime::get()) recorded_.recorder->end(recorded_);
  if (!recorded_.name.empty()) recorded_ = {};
  release_all();
  if (waits_ != 0) [[unlikely]]
    tell_call_site();
  if (!trouble_.empty()) {
    // Nothing threw it: the operator neither allocated nor read the storage through torch.
    std::fprintf(stderr, "firn: %s\n", trouble_.c_str());
    trouble_.clear();
  }
}

void ThreadScopes::release_all() {
  // In the child of a fork the engines are gone.
  if (Runtime::get())
    for (const Held& held : held_) held.engine->release(held.hold, held.stream);
  held_.clear();
}

void ThreadScopes::touch(c10::TensorImpl* tensor, Access access, bool uses) {
  if (!tensor->is_cuda()) return;
  const int device = tensor->device().index();
  switch (tensor->layout()) {
    case c10::kSparse: {
      auto* sparse = static_cast<at::SparseTensorImpl*>(tensor);
      touch(sparse->indices().unsafeGetTensorImpl(), access, uses);
      touch(sparse->values().unsafeGetTensorImpl(), access, uses);
      return;
    }
    case c10::kSparseCsr:
    case c10::kSparseCsc:
    case c10::kSparseBsr:
    case c10::kSparseBsc: {
      auto* sparse = static_cast<at::SparseCsrTensorImpl*>(tensor);
      touch(sparse->compressed_indices().unsafeGetTensorImpl(), access, uses);
      touch(sparse->plain_indices().unsafeGetTensorImpl(), access, uses);
      touch(sparse->values().unsafeGetTensorImpl(), access, uses);
      return;
    }
    default:
      if (tensor->has_storage())
        touch_storage(tensor->unsafe_storage().unsafeGetStorageImpl(), device, access, uses);
  }
}

void ThreadScopes::touch_storage(c10::StorageImpl* storage, int device, Access access,
                                 bool uses) {
  // A fake tensor says CUDA and has a storage without memory.
  const void* base = storage ? storage->_mutable_data_ptr_no_checks().get() : nullptr;
  Runtime* runtime = base ? Runtime::get() : nullptr;
  Engine* engine = runtime ? runtime->opened(device) : nullptr;
  if (!engine) return;
  CUstream stream = tell_stream(
      *engine, c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)));
  record::Recorder* recorder =
      uses && recording.load(std::memory_order_relaxed) ? runtime->recorder(device) : nullptr;
  if (recorder) recorder->pause(recorded_);
  Result<Hold> hold = engine->touch(base, stream, access);
  // The operator has chosen its kernel and cannot be stopped from here: let it run slowly.
  if (!hold && hold.error().code == Code::out_of_memory)
    hold = engine->touch_anyway(base, stream, access);
  if (recorder) {
    recorder->uses(recorded_, base, access == Access::write);
    recorded_stream_ = stream;
  }
  if (hold) {
    if (hold->block) held_.push_back({engine, *hold, stream, base});
    return;
  }
  std::string words = describe(hold.error());
  if (hold.error().code == Code::lost)
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_("firn: " + words);
  trouble_ = std::move(words);
}

void ThreadScopes::arguments_touched() {
  if (recorded_.recorder) recorded_.recorder->resume(recorded_, recorded_stream_);
}

void ThreadScopes::before_allocation() {
  if (recorded_.recorder) recorded_.recorder->pause(recorded_);
}

void ThreadScopes::hold_new(Engine& engine, int device, void* pointer, CUstream stream) {
  if (scopes_.empty()) {
    if (waits_ != 0) [[unlikely]]
      tell_call_site();
    return;
  }
  if (recording.load(std::memory_order_relaxed)) [[unlikely]]
    if (record::Recorder* recorder = Runtime::get()->recorder(device)) {
      recorder->makes(recorded_, pointer);
      recorder->resume(recorded_, stream);
    }
  Hold hold = engine.hold_new(pointer);
  if (hold.block) held_.push_back({&engine, hold, stream, pointer});
}

void ThreadScopes::forget(const void* pointer) {
  const size_t end = held_.size() > forget_most ? held_.size() - forget_most : 0;
  for (size_t i = held_.size(); i-- > end;) {
    if (held_[i].base != pointer) continue;
    held_[i].engine->release(held_[i].hold, held_[i].stream);
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(i));
  }
}

void ThreadScopes::stalled(uint64_t ns) {
  note_stall(scopes_.empty() ? nullptr : scopes_.back().info, ns);
  ++waits_;
  waited_ns_ += ns;
}

/// Nothing is held here: see note_call_site().
void ThreadScopes::tell_call_site() {
  note_call_site(std::exchange(waits_, 0), std::exchange(waited_ns_, 0));
}

std::string ThreadScopes::take_trouble() { return std::exchange(trouble_, {}); }

}  // namespace firn::pytorch
