// Owns the descriptors that hold the locks. Locks: the kernel's only, none of which is waited for.
#include "firn/neighbours.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <random>

namespace firn {

namespace {

constexpr off_t bytes = off_t{1} << 62;        // a lock lies below
constexpr off_t range_bytes = off_t{1} << 32;  // of one directory, in the user's own directory

struct flock lock(int type, off_t begin, off_t end) {
  struct flock words {};
  words.l_type = static_cast<short>(type);
  words.l_whence = SEEK_SET;
  words.l_start = begin;
  words.l_len = end - begin;
  return words;
}

/// Locks of other descriptors within [begin, end), at most `most`. The kernel answers with any one
/// of them, not with the first: what is left lies on both sides of it.
unsigned others(int fd, off_t begin, off_t end, unsigned most) {
  if (begin >= end || most == 0) return 0;
  struct flock words = lock(F_WRLCK, begin, end);  // what a write lock would meet; none is taken
  if (::fcntl(fd, F_OFD_GETLK, &words) != 0 || words.l_type == F_UNLCK) return 0;
  const off_t found_end =
      words.l_len == 0 ? end : std::min<off_t>(words.l_start + words.l_len, end);
  unsigned found = 1 + others(fd, begin, std::min<off_t>(words.l_start, end), most - 1);
  return found + others(fd, std::max(found_end, begin + 1), end, most - std::min(found, most));
}

/// One byte of [begin, end). An OFD lock: one of the process itself would be lost when any part of
/// the program closes any descriptor of that directory.
bool lock_within(int fd, off_t begin, off_t end) {
  std::random_device random;
  const auto drawn = (uint64_t{random()} << 32 | random()) % static_cast<uint64_t>(end - begin);
  const off_t at = begin + static_cast<off_t>(drawn);
  struct flock words = lock(F_RDLCK, at, at + 1);
  return ::fcntl(fd, F_OFD_SETLK, &words) == 0;
}

Descriptor open_directory(const std::string& path, int flags = 0) {
  return Descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags));
}

bool of_user_alone(int fd) {
  struct stat found {};
  return ::fstat(fd, &found) == 0 && found.st_uid == ::geteuid() && (found.st_mode & 077) == 0;
}

/// A directory that only this user may read; the same in all of his processes, at least of one
/// container. The last is that of the control sockets, if there is no better one.
Descriptor users_own_directory() {
  const std::string user = std::to_string(::geteuid());
  const char* named = ::secure_getenv("XDG_RUNTIME_DIR");
  const std::string made = "/tmp/firn-" + user;
  for (const std::string& path : {"/run/user/" + user, std::string(named ? named : ""), made}) {
    if (path.empty() || path[0] != '/') continue;
    if (path == made && ::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) continue;
    Descriptor opened = open_directory(path, O_NOFOLLOW);
    if (opened && of_user_alone(opened.get())) return opened;
  }
  return Descriptor();
}

/// The begin of that directory's range of locks in the user's own directory.
off_t range_of(int fd) {
  struct stat found {};
  if (::fstat(fd, &found) != 0) return 0;
  uint64_t mixed = (uint64_t{found.st_dev} << 32 ^ found.st_ino) * 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9u;
  return static_cast<off_t>(mixed >> 34) * range_bytes;  // 30 bits of it
}

}  // namespace

Neighbours Neighbours::join(const std::vector<std::string>& paths) {
  Neighbours made;
  for (const std::string& path : paths) {
    Directory joined;
    joined.directory = open_directory(path);
    if (!joined.directory || !lock_within(joined.directory.get(), 0, bytes)) continue;
    joined.own = of_user_alone(joined.directory.get());
    if (!joined.own) {
      if (!made.own_) made.own_ = users_own_directory();
      joined.begin = range_of(joined.directory.get());
      if (made.own_) (void)lock_within(made.own_.get(), joined.begin, joined.begin + range_bytes);
    }
    made.directories_.push_back(std::move(joined));
  }
  return made;
}

namespace {

/// The number of locks within [begin, end), that of `directory` included, at most `most`. In a
/// thread with a table of its own the directory is opened anew, and meets that lock, too. (If the
/// program has closed the descriptor, this counts no others: its own files are not asked.)
unsigned holders(const Descriptor& directory, off_t begin, off_t end, unsigned most) {
  if (!has_own_table())
    return 1 + (directory.ours() ? others(directory.get(), begin, end, most - 1) : 0);
  const int fd = directory.reopened(O_RDONLY | O_DIRECTORY);
  if (fd < 0) return 1;
  const unsigned found = std::max(1u, others(fd, begin, end, most));
  (void)::close(fd);
  return found;
}

}  // namespace

unsigned Neighbours::count(const Directory& joined) const {
  if (joined.own) return holders(joined.directory, 0, bytes, count_most);
  const unsigned own =
      own_ ? holders(own_, joined.begin, joined.begin + range_bytes, count_most) : 1;
  return std::max(own, holders(joined.directory, 0, bytes, 2 * own));
}

unsigned Neighbours::count() const {
  unsigned most = 1;
  for (const Directory& joined : directories_) most = std::max(most, count(joined));
  return most;
}

}  // namespace firn
