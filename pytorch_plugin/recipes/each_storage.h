// The storages of a device in an operator's argument or result that are large enough to move by
// themselves.
// Owns: nothing. Locks: none.
#pragma once

#include <ATen/core/ivalue.h>

#include "pytorch_plugin/observer.h"
#include "pytorch_plugin/recipes/given.h"

namespace firn::pytorch {

/// Calls visit(base, bytes) for each.
template <class Visit>
void each_storage(const c10::IValue& value, int device, Visit&& visit) {
  for_each_tensor(value, [&](c10::TensorImpl* tensor) {
    if (!tensor->key_set().has_backend(c10::BackendComponent::CUDABit) || !tensor->has_storage())
      return;
    const c10::StorageImpl* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
    if (!storage || storage->device_type() != c10::kCUDA || storage->device().index() != device)
      return;
    const void* base = storage->data_ptr().get();
    if (base && storage->nbytes() >= given_least_bytes) visit(base, storage->nbytes());
  });
}

}  // namespace firn::pytorch
