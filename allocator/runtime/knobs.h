// Each knob with the functions that read and show it, for config.cpp alone.
// Owns: nothing. Locks: none.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "allocator/runtime/config.h"

namespace firn {

struct KnobEntry {
  Knob knob;
  /// Returns what is wrong with the value, in words; empty if it was taken.
  std::string (*set)(Config&, std::string_view);
  std::string (*show)(const Config&);
};

/// The user's knobs, in the order in which they are shown; and those for tests only.
std::span<const KnobEntry> knob_entries();
std::span<const KnobEntry> test_knob_entries();
/// Finds a knob of either kind by name; null: there is none.
const KnobEntry* find_knob(std::string_view name);

}  // namespace firn
