// A process's command line, from /proc. Owns: nothing. Locks: none.
#pragma once

#include <sys/types.h>

#include <string>

namespace firn {

/// Its words, separated by blanks; empty if it cannot be read. They may hold any bytes.
std::string command_line(pid_t process);

}  // namespace firn
