// Where Firn was built without ncurses.
#include "allocator/command/screen.h"

namespace firn::command {

Result<void> show_screen(const ScreenLines&, std::chrono::milliseconds) {
  return make_error(Code::not_supported, 0,
                    "this firn was built without ncurses; --once prints one snapshot");
}

}  // namespace firn::command
