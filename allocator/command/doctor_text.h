// `firn doctor`'s findings as text. Owns: nothing. Locks: none.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace firn::command {

/// The document that `firn doctor --json` prints, for people.
std::string doctor_text(const nlohmann::ordered_json& report);

/// README's table of knobs.
std::string knobs_markdown();

}  // namespace firn::command
