// A process's words, as /proc has them. Owns: nothing. Locks: none.
#pragma once

#include <sys/types.h>

#include <string>

namespace firn {

/// Words with a blank between; empty where it cannot be read. They may hold any bytes.
std::string command_line(pid_t process);

}  // namespace firn
