// CPU tensors over the bytes of CUDA tensors; see aliases.h.
#include "backing/gpu/software/torch_ops/aliases.h"

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/List.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <functional>

namespace firn::torch_ops {
namespace {

// Device memory for a storage of `bytes`, on the current stream: asked for as CUDA kernels ask for
// the memory of their results, by an empty tensor.
c10::DataPtr device_memory(size_t bytes) {
  const c10::Device here(c10::kCUDA, c10::cuda::current_device());
  const at::TensorBase made =
      at::detail::empty_cuda({static_cast<int64_t>(bytes)}, at::kByte, here, std::nullopt);
  c10::StorageImpl* const storage = made.storage().unsafeGetStorageImpl();
  return storage->set_data_ptr(c10::DataPtr(nullptr, storage->device()));
}

void copy_geometry(const at::Tensor& from, c10::TensorImpl* to) {
  to->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
}

bool same_geometry(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.storage_offset() == b.storage_offset();
}

at::SparseTensorImpl* sparse(const at::Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

// Gives `to` the shape of `from`, and these parts.
void set_parts(at::SparseTensorImpl* to, const at::SparseTensorImpl* from,
               const at::Tensor& indices, const at::Tensor& values) {
  to->raw_resize_(from->sparse_dim(), from->dense_dim(), from->sizes());
  to->set_indices_and_values_unsafe(indices, values);
  to->set_coalesced(from->coalesced());
}

at::Tensor make_sparse(c10::DispatchKey key, const at::SparseTensorImpl* from,
                       const at::Tensor& indices, const at::Tensor& values) {
  at::Tensor made =
      at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), from->dtype());
  set_parts(sparse(made), from, indices, values);
  return made;
}

}  // namespace

const Aliases::Storage& Aliases::storage_of(const c10::Storage& original) {
  const auto [found, added] =
      storage_of_original_.try_emplace(original.unsafeGetStorageImpl(), storages_.size());
  if (added) {
    void* const bytes = original.mutable_data();
    c10::Storage alias(c10::Storage::use_byte_size_t{}, original.nbytes(),
                       c10::DataPtr(bytes, c10::Device(c10::kCPU)), c10::GetCPUAllocator(),
                       original.resizable());
    storages_.push_back({original, std::move(alias), bytes});
  }
  return storages_[found->second];
}

at::Tensor Aliases::sparse_alias_of(const at::Tensor& tensor) {
  const auto found = pair_of_original_.find(tensor.unsafeGetTensorImpl());
  if (found != pair_of_original_.end()) return pairs_[found->second].alias;
  const at::SparseTensorImpl* const from = sparse(tensor);
  const at::Tensor alias = make_sparse(c10::DispatchKey::SparseCPU, from,
                                       alias_of(from->indices()), alias_of(from->values()));
  pair_of_original_.emplace(tensor.unsafeGetTensorImpl(), pairs_.size());
  pairs_.push_back({tensor, alias});
  return alias;
}

at::Tensor Aliases::alias_of(const at::Tensor& tensor) {
  if (tensor.is_sparse()) return sparse_alias_of(tensor);
  const auto [found, added] =
      pair_of_original_.try_emplace(tensor.unsafeGetTensorImpl(), pairs_.size());
  if (!added) return pairs_[found->second].alias;
  const Storage& storage = storage_of(tensor.storage());
  at::Tensor alias = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage.alias), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  copy_geometry(tensor, alias.unsafeGetTensorImpl());
  if (tensor.is_conj()) alias._set_conj(true);
  if (tensor.is_neg()) alias._set_neg(true);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    alias.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  if (storage.bytes != nullptr && tensor.numel() != 0) {
    addresses_.push_back(reinterpret_cast<uint64_t>(storage.bytes) +
                         tensor.storage_offset() * tensor.itemsize());
  }
  pairs_.push_back({tensor, alias});
  return alias;
}

c10::IValue Aliases::to_cpu(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return value;
    if (tensor.is_cuda()) return alias_of(tensor);
    passed_.push_back(tensor);
    return value;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(to_cpu(tensor).toTensor());
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor.has_value() ? std::optional(to_cpu(*tensor).toTensor()) : tensor);
    }
    return list;
  }
  if (value.isDevice()) return c10::Device(c10::kCPU);
  return value;
}

c10::Storage Aliases::fresh_storage(const c10::Storage& cpu) {
  const auto [found, added] = fresh_.try_emplace(cpu.unsafeGetStorageImpl());
  if (added) {
    c10::DataPtr memory = device_memory(cpu.nbytes());
    if (cpu.nbytes() != 0) copies_.push_back({cpu, memory.get(), cpu.nbytes()});
    found->second = c10::Storage(c10::Storage::use_byte_size_t{}, cpu.nbytes(), std::move(memory),
                                 c10::cuda::CUDACachingAllocator::get(), /*resizable=*/true);
  }
  return found->second;
}

at::Tensor Aliases::original_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu()) return tensor;
  for (const Pair& pair : pairs_) {
    if (pair.alias.is_same(tensor)) return pair.original;
  }
  for (const at::Tensor& passed : passed_) {
    if (passed.is_same(tensor)) return tensor;
  }
  if (tensor.is_sparse()) {
    const at::SparseTensorImpl* const from = sparse(tensor);
    return make_sparse(c10::DispatchKey::SparseCUDA, from, original_of(from->indices()),
                       original_of(from->values()));
  }
  c10::Storage storage;
  for (const Storage& known : storages_) {
    if (known.alias.unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl()) {
      storage = known.original;  // a view
    }
  }
  if (!storage) storage = fresh_storage(tensor.storage());
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), tensor.dtype());
  copy_geometry(tensor, result.unsafeGetTensorImpl());
  if (tensor.is_conj()) result._set_conj(true);
  if (tensor.is_neg()) result._set_neg(true);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    result.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return result;
}

c10::IValue Aliases::to_cuda(const c10::IValue& value) {
  if (value.isTensor()) return original_of(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(original_of(tensor));
    }
    return list;
  }
  return value;
}

std::vector<std::pair<void*, size_t>> Aliases::storages_of(const c10::IValue& value) {
  std::vector<std::pair<void*, size_t>> ranges;
  const std::function<void(const at::Tensor&)> add = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return;
    if (tensor.is_sparse()) {
      add(sparse(tensor)->indices());
      add(sparse(tensor)->values());
      return;
    }
    ranges.emplace_back(storage_of(tensor.storage()).bytes, tensor.storage().nbytes());
  };
  if (value.isTensor()) add(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
  }
  return ranges;
}

/// An operator in place gives a sparse tensor other parts, or another count of them.
void Aliases::put_back_sparse(const Pair& pair) {
  at::SparseTensorImpl* const original = sparse(pair.original);
  const at::SparseTensorImpl* const alias = sparse(pair.alias);
  const at::Tensor indices = original_of(alias->indices()), values = original_of(alias->values());
  if (indices.is_same(original->indices()) && values.is_same(original->values()) &&
      original->sizes() == alias->sizes()) {
    original->set_coalesced(alias->coalesced());
    return;
  }
  set_parts(original, alias, indices, values);
}

void Aliases::put_back() {
  for (Storage& storage : storages_) {
    if (storage.alias.data() == storage.bytes) continue;
    // Resized past its end: the CPU allocator gave the alias new memory with the old bytes.
    const size_t bytes = storage.alias.nbytes();
    c10::DataPtr memory = device_memory(bytes);
    if (bytes != 0) copies_.push_back({storage.alias, memory.get(), bytes});
    c10::StorageImpl* const impl = storage.original.unsafeGetStorageImpl();
    impl->set_data_ptr_noswap(std::move(memory));
    impl->set_nbytes(bytes);
  }
  for (const Pair& pair : pairs_) {
    if (pair.original.is_sparse()) {
      put_back_sparse(pair);
      continue;
    }
    if (!same_geometry(pair.original, pair.alias)) {
      copy_geometry(pair.alias, pair.original.unsafeGetTensorImpl());
    }
  }
}

}  // namespace firn::torch_ops
