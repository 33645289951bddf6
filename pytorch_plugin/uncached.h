// Memory straight from the driver: with PYTORCH_NO_CUDA_MEMORY_CACHING set, or while
// torch.cuda.caching_allocator_enable(False) holds. As with the native allocator it is in no
// statistics; and it is not Firn's: it neither spills nor counts against the budget.
#pragma once

#include <c10/core/Allocator.h>

#include "allocator/engine/engine.h"

namespace firn::pytorch {

/// Whether the environment asks for it.
bool uncached();
/// `engine`: the device's, or null; its caches are given back where the driver has no room.
c10::DataPtr allocate_uncached(Engine* engine, size_t bytes, c10::DeviceIndex device);
void delete_uncached(void* pointer);

}  // namespace firn::pytorch
