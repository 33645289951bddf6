// Operators over lists of tensors (_foreach_*, fused optimizers): where the lists do not fit, they
// are run in slices, so that an optimizer step needs room for a few parameters and not for all.
//
// Owns: kernels under DispatchKey::BackendSelect, which every call passes between autograd and the
// device's kernel. Locks: none while operators run.
#pragma once

namespace firn::pytorch {

/// Called by install_observer(), before the first callback: from then on these operators' tensors
/// are held here, slice by slice.
void register_list_operators();

}  // namespace firn::pytorch
