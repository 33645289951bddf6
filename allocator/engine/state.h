// State that the engine's parts keep of a job that they follow. Private to the engine.
#pragma once

#include <cstdint>

#include "allocator/base/relaxed.h"

namespace firn {

/// Written under the lock, read without it: see Engine::failures().
struct Failed {
  Relaxed<uint64_t> lost_blocks, host_corrupt, device_corrupt, unseen_writes;
};

}  // namespace firn
