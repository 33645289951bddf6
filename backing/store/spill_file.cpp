#include "backing/store/spill_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>

#include "firn/canary.h"
#include "firn/store.h"

namespace firn {

namespace {

constexpr int interrupted_most = 100;
// Not in <linux/magic.h> everywhere.
constexpr int64_t xfs_magic = 0x58465342, zfs_magic = 0x2fc12fc1, fuse_magic = 0x65735546;

Error refuse(const std::string& dir, int error, const std::string& words) {
  return make_error(Code::invalid_argument, error, fmt::format("firn_dir: {} {}", dir, words));
}

/// Others may write to the directory only if the sticky bit keeps them from each other's files. The
/// file has no name at any time, so that even they cannot reach it.
Result<void> check_owner(const std::string& dir, const struct stat& status) {
  uid_t user = geteuid();
  if ((status.st_mode & S_IWOTH) && !(status.st_mode & S_ISVTX))
    return refuse(dir, 0,
                  fmt::format("is writable by everybody (mode {:04o}): chmod o-w, or +t",
                              status.st_mode & 07777));
  if (status.st_uid != user && status.st_uid != 0 && user != 0)
    return refuse(dir, 0,
                  fmt::format("belongs to user {}, but must belong to you ({}) or to root: name a "
                              "directory of your own",
                              status.st_uid, user));
  return {};
}

/// Root may use a user's directory, as jobs in containers and under sudo do on scratch disks: that
/// user can make it, fill it and rename it, but never reach a file in it that has no name.
std::string owner_words(const std::string& dir, int fd) {
  struct stat status {};
  if (::geteuid() != 0 || ::fstat(fd, &status) != 0 || status.st_uid == 0) return {};
  return fmt::format("{}: belongs to user {}, and this job runs as root", dir, status.st_uid);
}

/// Opens the directory itself (following the symbolic links the user wrote, then none).
Result<Descriptor> open_dir(const std::string& dir) {
  if (dir.empty() || dir[0] != '/') return refuse(dir, 0, "is not an absolute path");
  std::unique_ptr<char, decltype(&std::free)> real(::realpath(dir.c_str(), nullptr), &std::free);
  if (!real) {
    int error = errno;
    return refuse(dir, error, error == ENOENT ? "does not exist" : errno_words(error));
  }
  Descriptor fd(::open(real.get(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) {
    int error = errno;
    return refuse(dir, error, error == ENOTDIR ? "is not a directory" : errno_words(error));
  }
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return refuse(dir, errno, errno_words(errno));
  Result<void> owner = check_owner(dir, status);
  if (!owner) return owner.error();
  return fd;
}

Error refuse_file(const std::string& dir, int error, const std::string& filesystem) {
  switch (error) {
    case EACCES:
    case EPERM:
    case EROFS:
      return refuse(dir, error, "is not writable: " + errno_words(error));
    case EOPNOTSUPP:
    case EISDIR:
    case ENOENT:
      return refuse(dir, error,
                    fmt::format("is on {}, which cannot make files without a name "
                                "(O_TMPFILE): {}",
                                filesystem, errno_words(error)));
    case EINVAL:
      return refuse(dir, error,
                    fmt::format("is on {}, which lacks direct I/O (O_DIRECT)", filesystem));
    default:
      return refuse(dir, error, errno_words(error));
  }
}

/// When the file was made; 0 where the file system does not tell.
int64_t born_ns(int fd) {
  struct statx found {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &found) != 0 || !(found.stx_mask & STATX_BTIME))
    return 0;
  return found.stx_btime.tv_sec * 1'000'000'000 + found.stx_btime.tv_nsec;
}

/// Do bytes written directly come back? Nothing of the trial stays.
Result<void> try_out(const std::string& dir, int fd, FileCalls& calls) {
  if (calls.file_bytes_max() < store_alignment)
    return refuse(dir, EFBIG,
                  "cannot hold a file: the limit on file sizes (RLIMIT_FSIZE, "
                  "ulimit -f) is below 4 KiB");
  std::unique_ptr<std::byte, decltype(&std::free)> block(
      static_cast<std::byte*>(std::aligned_alloc(store_alignment, 2 * store_alignment)),
      &std::free);
  if (!block) return refuse(dir, ENOMEM, errno_words(ENOMEM));
  std::byte* back = block.get() + store_alignment;
  for (size_t i = 0; i < store_alignment; ++i) {
    block.get()[i] = static_cast<std::byte>(i * 131 + 7);
    back[i] = std::byte{0};
  }
  for (bool write : {true, false}) {
    std::byte* data = write ? block.get() : back;
    size_t at = 0;
    for (int tries = 0; at < store_alignment && tries < interrupted_most; ++tries) {
      ssize_t done = calls.transfer({write, false, fd, at, data + at, store_alignment - at});
      if (done == -EINTR || done == -EAGAIN) continue;
      if (done < 0) {
        auto error = static_cast<int>(-done);
        if (error == ENOSPC || error == EDQUOT)
          return make_error(Code::no_space, error,
                            fmt::format("firn_dir: {}: {}", dir, errno_words(error)));
        return refuse(dir, error,
                      fmt::format("{} a 4 KiB block by direct I/O (O_DIRECT): {}",
                                  write ? "cannot write" : "cannot read back", errno_words(error)));
      }
      at += static_cast<size_t>(done);
    }
    if (at < store_alignment) return refuse(dir, EIO, "moves no bytes by direct I/O (O_DIRECT)");
  }
  if (std::memcmp(block.get(), back, store_alignment) != 0)
    return refuse(dir, EIO, "returned other bytes than were written (a trial block of 4 KiB)");
  int result = calls.ftruncate(fd, 0);
  if (result < 0) return refuse(dir, -result, "ftruncate: " + errno_words(-result));
  return {};
}

}  // namespace

Result<SpillFile> SpillFile::open(const std::string& dir, bool allow_tmpfs, FileCalls& calls) {
  Result<Descriptor> at = open_dir(dir);
  if (!at) return at.error();
  struct statfs system {};
  if (::fstatfs(at->get(), &system) != 0) return refuse(dir, errno, errno_words(errno));
  bool memory = system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC;
  std::string filesystem = filesystem_name(system.f_type);
  if (memory && !allow_tmpfs)
    return refuse(dir, 0,
                  fmt::format("is on {}: spilling to it uses up host memory", filesystem));
  constexpr int flags = O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC;
  SpillFile file;
  file.dir_ = dir;
  file.why_ = owner_words(dir, at->get());
  file.direct_flags_ = O_RDWR | O_DIRECT;
  file.direct_ = Descriptor(::openat(at->get(), ".", flags | O_DIRECT, 0600));
  if (!file.direct_ && errno == EINVAL && memory) {  // there is no page cache to bypass
    file.direct_flags_ = O_RDWR;
    file.direct_ = Descriptor(::openat(at->get(), ".", flags, 0600));
  }
  if (!file.direct_) return refuse_file(dir, errno, filesystem);
  file.born_ns_ = born_ns(file.direct_.get());
  Result<void> trial = try_out(dir, file.direct_.get(), calls);
  if (!trial) return trial.error();
  // The same file once more, through the page cache: another path to the bytes when a sum is wrong.
  std::string self = fmt::format("/proc/self/fd/{}", file.direct_.get());
  file.buffered_ = Descriptor(::open(self.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.buffered_)
    file.why_ += fmt::format("{}{}: Firn re-reads wrong bytes only by direct I/O ({}: {})",
                             file.why_.empty() ? "" : "; ", dir, self,
                            errno_words(errno));
  return file;
}

/// Preallocates up to `bytes`; undone when it fails midway (ext4 leaves blocks behind). (It takes
/// long: the process's number, where it is used, is checked again before each call.)
int SpillFile::extend(ThreadFile& at, uint64_t bytes, FileCalls& calls) {
  int result = -EINTR;
  for (int tries = 0; result == -EINTR && tries < interrupted_most; ++tries) {
    if (at.reach_errno(false) != 0) return -EBADF;
    result = calls.fallocate(at.fd(false), bytes_, bytes - bytes_);
  }
  if (result < 0 && at.reach_errno(false) != 0) return -EBADF;
  if (result == -EOPNOTSUPP) {
    if (why_.empty())
      why_ = fmt::format("{}: the file system cannot preallocate, so writes are slower", dir_);
    result = calls.ftruncate(at.fd(false), bytes);
  }
  if (result < 0) {
    int undone = calls.ftruncate(at.fd(false), bytes_);
    if (undone < 0 && why_.empty())
      why_ = fmt::format("{}: the space of a failed preallocation stays taken: {}", dir_,
                         errno_words(-undone));
  }
  return result;
}

bool SpillFile::ours(bool buffered) const {
  return buffered && buffered_ ? buffered_.ours() : direct_.ours();
}

Error SpillFile::closed_by_program() const {
  return make_error(Code::lost, EBADF,
                    fmt::format("{}: the program closed descriptors that it did not open "
                                "(os.closerange, or the start of a daemon?), among them the spill "
                                "file's (firn_dir)",
                                dir_));
}

/// A file system takes all the room that there is before it refuses a step that is too large:
/// others find none meanwhile, and ext4 gives it back only with its next commit. And several jobs
/// may share a small disk. So no step takes more than an eighth of what is free.
uint64_t SpillFile::fitting(int fd, uint64_t step, uint64_t need) const {
  struct statfs system {};
  if (::fstatfs(fd, &system) != 0 || system.f_blocks == 0) return step;
  const uint64_t part = uint64_t{system.f_bavail} * static_cast<uint64_t>(system.f_bsize) / 8;
  return std::min(step, std::max(need, part - part % store_alignment));
}

Result<uint64_t> SpillFile::grow(ThreadFile& at, uint64_t step, uint64_t need,
                                 FileCalls& calls) {
  if (Error error = at.reach(false); error.code != Code::ok) return error;
  step = fitting(at.fd(false), step, need);
  int result = extend(at, bytes_ + step, calls);
  if (result < 0 && need < step) {
    step = need;
    result = extend(at, bytes_ + step, calls);
  }
  if (result < 0)
    if (Error error = at.reach(false); error.code != Code::ok) return error;
  if (result < 0 && !FIRN_CANARY(23))
    return make_error(
        result == -ENOSPC || result == -EDQUOT || result == -EFBIG ? Code::no_space : Code::io,
        -result,
        fmt::format("{}: the spill file of {} bytes cannot grow by {}: {} (firn_dir)", dir_, bytes_,
                    step, errno_words(-result)));
  bytes_ += step;
  return step;
}

ThreadFile::~ThreadFile() {
  for (const int fd : {direct_, buffered_})
    if (fd >= 0) (void)::close(fd);
}

int ThreadFile::fd(bool buffered) const {
  if (!own()) return buffered ? file_->buffered_fd() : file_->direct_fd();
  return buffered && buffered_ >= 0 ? buffered_ : direct_;
}

int ThreadFile::open_anew() {
  direct_ = file_->direct_.reopened(file_->direct_flags_);
  if (direct_ < 0) return errno;
  const int64_t born = born_ns(direct_);
  if (born != 0 && file_->born_ns_ != 0 && born != file_->born_ns_) {
    (void)::close(std::exchange(direct_, -1));
    return EBADF;
  }
  // (Without it wrong bytes are read again by direct I/O only.)
  if (file_->buffered_) buffered_ = file_->direct_.reopened(O_RDWR);
  return 0;
}

int ThreadFile::reach_errno(bool buffered) {
  if (own()) return 0;
  if (!in_own_table_) return file_->ours(buffered) ? 0 : EBADF;
  return open_anew();
}

Error ThreadFile::reach(bool buffered) {
  const int error = reach_errno(buffered);
  if (error == 0) return {};
  if (error == EBADF) return file_->closed_by_program();
  return make_error(Code::io, error,
                    fmt::format("{}: cannot reopen the spill file: {}", file_->dir(),
                                errno_words(error)));
}

ThreadFile ThreadFile::copy() const {
  ThreadFile made(*file_);
  made.in_own_table_ = in_own_table_;
  for (const auto& [from, to] : {std::pair{direct_, &made.direct_}, {buffered_, &made.buffered_}})
    if (from >= 0) *to = ::fcntl(from, F_DUPFD_CLOEXEC, from);
  return made;
}

std::string ThreadFile::take_table(std::span<ThreadFile> files, FileCalls& calls) {
  const auto none = [](const char* what, int error) {
    return fmt::format("{}: {}", what, errno_words(error));
  };
  if (!has_own_table()) {
    if (!calls.helps(FileCalls::RingHelp::own_table)) return none("close_range", ENOSYS);
    // In an empty table the process's numbers can no longer be checked.
    for (const ThreadFile& each : files) {
      int error = each.file_->direct_.reopens();
      if (error == EBADF && each.file_->ours(false)) error = ENOENT;  // /proc shows another table
      if (error == 0 && !each.file_->buffered_) error = EACCES;       // as when that was opened
      if (error != 0 && error != EBADF) return none("/proc/self/fd", error);
    }
    if (!take_empty_table()) return none("close_range", errno);
  }
  for (ThreadFile& each : files) {
    each.in_own_table_ = true;
    (void)each.open_anew();  // or as soon as it can
  }
  return {};
}

std::string filesystem_name(int64_t magic) {
  struct Name {
    int64_t magic;
    const char* name;
  };
  constexpr std::array<Name, 11> names{{{EXT4_SUPER_MAGIC, "ext4"},
                                        {xfs_magic, "xfs"},
                                        {BTRFS_SUPER_MAGIC, "btrfs"},
                                        {TMPFS_MAGIC, "tmpfs"},
                                        {RAMFS_MAGIC, "ramfs"},
                                        {OVERLAYFS_SUPER_MAGIC, "overlay"},
                                        {NFS_SUPER_MAGIC, "nfs"},
                                        {F2FS_SUPER_MAGIC, "f2fs"},
                                        {SQUASHFS_MAGIC, "squashfs"},
                                        {zfs_magic, "zfs"},
                                        {fuse_magic, "fuse"}}};
  for (const Name& known : names)
    if (known.magic == magic) return known.name;
  return fmt::format("{:#x}", magic);
}

std::string errno_words(int error) { return std::generic_category().message(error); }

}  // namespace firn
