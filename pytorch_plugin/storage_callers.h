// Distinguishes the memory of a tensor's storage from a workspace that a library asks for. Both
// come from c10::Allocator::allocate(), called from call sites of their own in torch's code. Those
// that make storages are learned by making some with an allocator that notes its caller; a caller
// from elsewhere is taken for a library.
//
// Owns: a few addresses for the process's life. Locks: none.
#pragma once

namespace firn::pytorch {

/// Learns the call sites. Call when a device is used first, with CUDA there; again has no effect.
void learn_storage_callers(int device);

/// Whether `caller`, the address to which allocate() returns, makes a tensor's storage. False
/// before they are learned. Lock-free, a few comparisons.
bool makes_storage(const void* caller);

}  // namespace firn::pytorch
