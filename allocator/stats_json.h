// The document of `firn run --stats`: what the contract names, and beside it what explains it.
#pragma once

#include <string>
#include <vector>

#include "allocator/engine.h"
#include "firn/store.h"

namespace firn {

std::string stats_json(const std::vector<EngineStats>& devices, const StoreStats& store,
                       const std::vector<std::string>& unseen);

}  // namespace firn
