// How store and engines are opened: their options, from the process's configuration. Owns: nothing.
// Locks: none.
#pragma once

#include <cstdint>

#include "allocator/engine/engine.h"
#include "allocator/runtime/config.h"
#include "firn/driver.h"
#include "firn/store.h"

namespace firn {

/// Of config.dirs, for this rank of those that share them.
StoreOptions store_options(const Config& config, const Driver& driver);

/// All that is the same for each device. The caller adds the device, its context and budget, host
/// memory and the recorder.
EngineOptions engine_options(const Config& config);

/// Without firn_budget: what is free, but a margin for others.
uint64_t default_budget(uint64_t free_bytes, uint64_t total_bytes);

}  // namespace firn
