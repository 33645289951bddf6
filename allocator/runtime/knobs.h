// Each knob with the functions that read and show it, for config.cpp alone.
// Owns: nothing. Locks: none.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "allocator/runtime/config.h"

namespace firn {

/// A knob, and how it is written to and read from a configuration.
struct KnobBinding {
  Knob knob;
  /// Returns what is wrong with the value, in words; empty if it was taken.
  std::string (*set)(Config&, std::string_view);
  std::string (*show)(const Config&);
};

/// The user's knobs, in the order in which they are shown; and those for tests only.
std::span<const KnobBinding> knob_bindings();
std::span<const KnobBinding> test_knob_bindings();
/// Finds a knob of either kind by name; null: there is none.
const KnobBinding* find_knob(std::string_view name);

}  // namespace firn
