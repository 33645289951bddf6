// Each knob with its reader and its shower, for config.cpp alone.
// Owns: nothing. Locks: none.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "allocator/runtime/config.h"

namespace firn {

struct KnobEntry {
  Knob knob;
  /// Answers what is wrong with the value, in words; empty when it was taken.
  std::string (*set)(Config&, std::string_view);
  std::string (*show)(const Config&);
};

/// The user's, in the order in which they are shown; and those that only tests want.
std::span<const KnobEntry> knob_entries();
std::span<const KnobEntry> test_knob_entries();
/// Of either; null: there is none of that name.
const KnobEntry* find_knob(std::string_view name);

}  // namespace firn
