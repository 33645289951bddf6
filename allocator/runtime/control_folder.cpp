#include "allocator/runtime/control_folder.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "allocator/base/numbers.h"

namespace firn {

namespace {
constexpr std::string_view suffix = ".sock";

Error bad(Code code, const std::string& what) {
  return make_error(code, errno, fmt::format("{}: {}", what, std::strerror(errno)));
}
}  // namespace

std::vector<std::string> control_folders() {
  std::vector<std::string> folders;
  const auto add = [&](std::string folder) {
    if (std::find(folders.begin(), folders.end(), folder) == folders.end())
      folders.push_back(std::move(folder));
  };
  const char* named = ::secure_getenv("XDG_RUNTIME_DIR");
  if (named && *named == '/') add(std::string(named) + "/firn");
  add(fmt::format("/run/user/{}/firn", ::geteuid()));
  add(fmt::format("/tmp/firn-{}", ::geteuid()));
  return folders;
}

Result<void> check_control_folder(const std::string& folder) {
  struct stat found{};
  if (::lstat(folder.c_str(), &found) != 0)
    return bad(errno == ENOENT || errno == ENOTDIR ? Code::not_supported : Code::io, folder);
  if (!S_ISDIR(found.st_mode) || found.st_uid != ::geteuid() || (found.st_mode & 077) != 0)
    return make_error(Code::io, EPERM, folder + ": must be a folder of yours with mode 0700");
  return {};
}

Result<void> make_control_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return bad(Code::io, folder);
  return check_control_folder(folder);
}

std::string control_path(const std::string& folder, pid_t process) {
  return fmt::format("{}/{}{}", folder, process, suffix);
}

std::vector<pid_t> control_sockets(const std::string& folder) {
  std::vector<pid_t> processes;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), ::closedir);
  if (!open) return processes;
  while (const dirent* entry = ::readdir(open.get())) {
    const std::string_view name = entry->d_name;
    if (!name.ends_with(suffix)) continue;
    const auto process = as_number<pid_t>(name.substr(0, name.size() - suffix.size()));
    if (process && *process > 0) processes.push_back(*process);
  }
  std::sort(processes.begin(), processes.end());
  return processes;
}

bool same_user(int socket) {
  ucred other{};
  socklen_t size = sizeof other;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 &&
         other.uid == ::geteuid();
}

Result<int> connect_control(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return make_error(Code::io, ENAMETOOLONG, path + ": the path is too long for a socket");
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return bad(Code::io, "socket");
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int why = errno;
    ::close(fd);
    // A process listens before it publishes the name (ControlSocket): a refusal means it is dead.
    if (why == ECONNREFUSED) (void)::unlink(path.c_str());
    errno = why;
    return bad(why == ECONNREFUSED ? Code::not_supported : Code::io, path);
  }
  if (!same_user(fd)) {
    ::close(fd);
    return make_error(Code::io, EPERM, path + ": another user's process listens there");
  }
  return fd;
}

}  // namespace firn
