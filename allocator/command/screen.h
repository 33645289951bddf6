// Lines on a terminal, redrawn now and then, by ncurses. Owns: the terminal, while it shows them.
// Locks: none.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "firn/result.h"

namespace firn::command {

/// Shows the result of `lines`, the first line as a head, until the user quits. `lines` receives
/// how many further lines of each kind the user wants, and how wide the screen is.
using ScreenLines = std::function<std::vector<std::string>(size_t more, size_t width)>;
Result<void> show_screen(const ScreenLines& lines, std::chrono::milliseconds between);

}  // namespace firn::command
