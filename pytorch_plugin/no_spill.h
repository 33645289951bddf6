// firn.no_spill(): while anyone is inside, nothing leaves any device.
//
// Owns: how many are inside. Locks: one, for that.
#pragma once

#include "allocator/engine/engine.h"

namespace firn::pytorch {

void enter_no_spill();
void leave_no_spill();
/// A newly opened engine follows the others.
void follow_no_spill(Engine& engine);

}  // namespace firn::pytorch
