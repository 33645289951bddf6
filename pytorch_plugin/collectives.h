// Collectives whose kernels no launch within their operator shows.
//
// Owns: holds on their tensors until they are over. Locks: none of its own.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "pytorch_plugin/scopes.h"

namespace firn::pytorch {

/// A collective's operator has ended without a launch. Where it gives no Work, its launch comes
/// later, with those of others, when the program ends their group (coalesced sends and receives):
/// its tensors then stay on the device for their lives. With a Work, and nobody in front of the
/// driver to see launches, they are held, and used on a stream that comes behind it.
void follow_collective(ThreadScopes& scopes, const std::vector<c10::IValue>& results);

}  // namespace firn::pytorch
