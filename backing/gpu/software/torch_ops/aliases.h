// CPU tensors over the bytes of CUDA tensors, for the length of one operator.
//
// Owns the aliases; the CUDA tensors are the caller's. Tensors that share a storage share its
// alias. A sparse tensor (COO) has aliases of its indices and its values. The bytes may be touched
// only while the stream is held (stream_work.h). Needs no lock.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace firn::torch_ops {

class Aliases {
 public:
  /// `value` with CUDA tensors (also those in lists) replaced by their aliases and devices by the
  /// CPU; everything else as it is.
  c10::IValue to_cpu(const c10::IValue& value);

  /// The reverse for an operator's result: aliases become their originals, views of an alias views
  /// of its original, new CPU tensors new tensors on the current device whose bytes are still to be
  /// copied (copies()). Allocates.
  c10::IValue to_cuda(const c10::IValue& value);

  /// Gives originals the sizes, strides and storages that the operator gave their aliases.
  void put_back();

  /// Copies from CPU to device memory that must follow in stream order.
  struct Copy {
    c10::Storage from;
    void* to;
    size_t bytes;
  };
  const std::vector<Copy>& copies() const { return copies_; }

  /// The bytes of the storage of each CUDA tensor in `value`.
  std::vector<std::pair<void*, size_t>> storages_of(const c10::IValue& value);

  /// Where the CUDA tensors' bytes begin.
  const std::vector<uint64_t>& addresses() const { return addresses_; }

 private:
  struct Storage {
    c10::Storage original;
    c10::Storage alias;
    void* bytes;  // of both, at the start
  };
  struct Pair {
    at::Tensor original;
    at::Tensor alias;
  };

  at::Tensor alias_of(const at::Tensor& tensor);
  at::Tensor sparse_alias_of(const at::Tensor& tensor);
  const Storage& storage_of(const c10::Storage& original);
  at::Tensor original_of(const at::Tensor& tensor);
  void put_back_sparse(const Pair& pair);
  c10::Storage fresh_storage(const c10::Storage& cpu);

  std::vector<Pair> pairs_;
  std::vector<Storage> storages_;
  std::unordered_map<const c10::TensorImpl*, size_t> pair_of_original_;  // when there are many
  std::unordered_map<const c10::StorageImpl*, size_t> storage_of_original_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> fresh_;  // by CPU storage
  std::vector<at::Tensor> passed_;  // CPU tensors among the arguments
  std::vector<Copy> copies_;
  std::vector<uint64_t> addresses_;
};

}  // namespace firn::torch_ops
