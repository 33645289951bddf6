// Shared by the commands: one-line refusals, and the exit statuses of the contract.
// Owns: nothing. Locks: none (single-threaded process).
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "firn/result.h"

namespace firn::command {

inline constexpr int status_ok = 0;
inline constexpr int status_failed = 1;  // the request was not carried out, or not wholly
inline constexpr int status_bad_input = 2;  // unknown option, nonsense value, nothing started
inline constexpr int status_not_executable = 126;  // as shells say it
inline constexpr int status_not_found = 127;

/// Prints "firn: TEXT" on standard error as one line, whatever TEXT holds, and returns `status`.
int refuse(std::string_view text, int status = status_bad_input);
/// Prints "firn: warning: TEXT" in the same way.
void warn(std::string_view text);
/// TEXT with line breaks replaced.
std::string one_line(std::string_view text);

}  // namespace firn::command
