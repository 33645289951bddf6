// Where processes of Firn can be spoken to: a socket each, PID.sock, in a folder that only their
// user may enter. Here is what both sides share: the folders, and connecting.
//
// Sockets have names in the file system, because those without have no permissions; and whoever
// connects, and who is connected to, is asked of the kernel besides (SO_PEERCRED).
// Owns: nothing. Locks: none.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "firn/result.h"

namespace firn {

/// "$XDG_RUNTIME_DIR/firn", "/run/user/UID/firn", "/tmp/firn-UID", without repetition: a process's
/// socket is in the first where one could be made, and is looked for in all, for a viewer's
/// environment may be another.
std::vector<std::string> control_folders();

/// Makes the folder, 0700, if it is not there. Errors: it cannot be made; it is not this user's, or
/// others may enter it.
Result<void> make_control_folder(const std::string& folder);
/// The same without making it; not_supported: it is not there.
Result<void> check_control_folder(const std::string& folder);

std::string control_path(const std::string& folder, pid_t process);

/// What is in the folder: processes by the names of their sockets, in order.
std::vector<pid_t> control_sockets(const std::string& folder);

/// A connected socket that does not block; never waits. Errors: not_supported (nobody listens: its
/// process is dead, and the file is removed), io (no such socket; too many callers; it is another
/// user's, whose word is not taken).
Result<int> connect_control(const std::string& path);

/// The user at the other end of a connected socket is this process's.
bool same_user(int socket);

}  // namespace firn
