// Collectives that show no launch within their operator.
//
// Owns nothing. Locks: none.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "pytorch_plugin/scopes.h"

namespace firn::pytorch {

/// A collective's operator has ended without a launch. If it gives no Work, its launch comes later,
/// with those of others, when the program ends their group (coalesced sends and receives); if Firn
/// is not in front of the driver, the launch may have been on any stream. Then its tensors stay on
/// the device for their lives.
void follow_collective(ThreadScopes& scopes, const std::vector<c10::IValue>& results);

}  // namespace firn::pytorch
