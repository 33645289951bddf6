// The document of `firn run --stats`: the members of the contract, and others that explain them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "allocator/engine/engine.h"
#include "firn/store.h"

namespace firn {

/// Pinned host memory, of all devices.
struct HostStats {
  uint64_t budget_bytes = 0;
  unsigned sharers = 1;  // processes of Firn on this machine, including this one, as last counted
};

/// Members that front ends add to the document: a name, and a function for its value as JSON.
using Sections = std::map<std::string, std::function<std::string()>>;

std::string stats_json(const std::vector<EngineStats>& devices, const HostStats& host,
                       const StoreStats& store, const std::vector<std::string>& unseen,
                       const Sections& sections = {});

/// A device before and after `firn spill`.
struct SpilledAway {
  EngineStats before, after;
};
/// The answer to `firn spill`: what left each device, and what stays there and why.
std::string spill_json(const std::vector<SpilledAway>& devices);

}  // namespace firn
