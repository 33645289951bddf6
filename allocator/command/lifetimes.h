// `firn simulate --lifetimes`: a trace's active and inactive memory as JSON and as text.
// Owns: nothing. Locks: none.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "allocator/simulate/activity.h"

namespace firn::command {

/// All of simulate::Activity, times in seconds:
///   seconds, footprint and active (bytes, shares of the footprint)
///   tensors, of them inactive for longer than 10 ms; inactive periods, of them longer than that
///   by_length   for each class of periods: until which length, how many, bytes idle on average
///   by_kind     weights, states, made: the same, and tensors, bytes
///   over_time   rows of equal parts of the iteration: seconds, active bytes, bytes by_length
nlohmann::ordered_json lifetimes_json(const simulate::Activity& found);
std::string lifetimes_text(const nlohmann::ordered_json& found, const std::string& prefix,
                           size_t kernels);

}  // namespace firn::command
