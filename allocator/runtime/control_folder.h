// The control sockets of Firn's processes: one each, PID.sock, in a folder that only their user may
// enter. This is what both sides share: the folders, and connecting.
//
// Sockets have names in the file system, because abstract ones have no permissions. Both sides also
// ask the kernel for the user at the other end (SO_PEERCRED).
// Owns: nothing. Locks: none.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "firn/result.h"

namespace firn {

/// "$XDG_RUNTIME_DIR/firn", "/run/user/UID/firn", "/tmp/firn-UID", without repetition. A process
/// makes its socket in the first that it can use; viewers search all of them, as their environment
/// may differ.
std::vector<std::string> control_folders();

/// Makes the folder, 0700, if it is not there. Errors: it cannot be made; it is not this user's, or
/// others may enter it.
Result<void> make_control_folder(const std::string& folder);
/// The same without making it; not_supported: it is not there.
Result<void> check_control_folder(const std::string& folder);

std::string control_path(const std::string& folder, pid_t process);

/// The processes that have a socket in the folder, in order.
std::vector<pid_t> control_sockets(const std::string& folder);

/// A connected non-blocking socket; never waits. Errors: not_supported (its process is dead; the
/// file is removed), io (no such socket; too many callers; another user's).
Result<int> connect_control(const std::string& path);

/// The user at the other end of a connected socket is this process's.
bool same_user(int socket);

}  // namespace firn
