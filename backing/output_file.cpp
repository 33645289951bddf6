#include "firn/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace firn {

namespace {
constexpr mode_t owner_only = 0600, all_may_read = 0644;  // less the umask's bits

Error failed(const std::string& path, int error) {
  const char* words = error == ELOOP ? "is a symbolic link, which is not followed"
                      : error == ENXIO ? "is a pipe without a reader"
                                       : std::strerror(error);
  return make_error(Code::io, error, "cannot write " + path + ": " + words);
}
}  // namespace

Result<OutputFile> OutputFile::create(const std::string& path, If there, Readers readers) {
  // Does not wait for a pipe without a reader.
  int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  flags |= there == If::empties ? O_TRUNC : O_EXCL;
  // These are links to the process's open files; in /dev/shm any user may put others.
  if (path != "/dev/stdout" && path != "/dev/stderr" && !path.starts_with("/dev/fd/"))
    flags |= O_NOFOLLOW;
  const int fd =
      ::open(path.c_str(), flags, readers == Readers::owner ? owner_only : all_may_read);
  if (fd < 0) return failed(path, errno);
  (void)::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  OutputFile file;
  file.file_ = Descriptor(fd);
  file.path_ = path;
  return file;
}

Result<void> OutputFile::write(std::string_view text) {
  if (!file_.ours())
    return make_error(Code::io, EBADF,
                      "cannot write " + path_ +
                          ": the program closed Firn's descriptor of the file");
  while (!text.empty()) {
    const ssize_t written = ::write(file_.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return failed(path_, written < 0 ? errno : EIO);
    text.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

/// (A pipe, or a device, is not synchronised.)
Result<void> OutputFile::close() {
  const bool whole = !file_ || ::fsync(file_.get()) == 0 || errno == EINVAL || errno == EROFS;
  const int error = errno;
  file_ = Descriptor();
  if (!whole) return failed(path_, error);
  return {};
}

Result<void> replace_file(const std::string& path, std::string_view text,
                          OutputFile::Readers readers) {
  // (Other processes, ranks of one job, say, may be writing the same file.)
  const std::string part = path + "." + std::to_string(::getpid()) + ".part";
  (void)::unlink(part.c_str());
  Result<OutputFile> file = OutputFile::create(part, OutputFile::If::exists_fails, readers);
  if (!file) return file.error();
  Result<void> done = file->write(text);
  if (done) done = file->close();
  if (done && ::rename(part.c_str(), path.c_str()) != 0) done = failed(path, errno);
  if (!done) (void)::unlink(part.c_str());
  return done;
}

}  // namespace firn
