// Owns the descriptors that hold the locks. Locks: the kernel's only, none of which is waited for.
#include "firn/neighbours.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <random>

namespace firn {

namespace {

constexpr off_t bytes = off_t{1} << 62;  // a lock lies below
constexpr unsigned count_most = 1024;    // a limit to what somebody else's locks may cost us

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

}  // namespace

Neighbours Neighbours::join(const std::vector<std::string>& places) {
  Neighbours made;
  std::random_device random;
  for (const std::string& place : places) {
    const int fd = ::open(place.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) continue;
    const off_t at =
        static_cast<off_t>((uint64_t{random()} << 32 | random()) % static_cast<uint64_t>(bytes));
    struct flock words = lock(F_RDLCK, at, at + 1);
    // OFD: a lock of the process itself would be lost when any part of the program closes any
    // descriptor of that directory.
    if (::fcntl(fd, F_OFD_SETLK, &words) == 0)
      made.locked_.push_back(fd);
    else
      (void)::close(fd);  // only read from
  }
  return made;
}

Neighbours::Neighbours(Neighbours&& other) noexcept : locked_(std::move(other.locked_)) {
  other.locked_.clear();
}

Neighbours::~Neighbours() {
  for (const int fd : locked_) (void)::close(fd);  // only read from
}

unsigned Neighbours::count() const {
  unsigned most = 1;
  for (const int fd : locked_) most = std::max(most, 1 + others(fd, 0, bytes, count_most));
  return most;
}

}  // namespace firn
