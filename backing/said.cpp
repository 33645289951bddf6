#include "firn/said.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>

#include "firn/descriptor.h"

namespace firn {

namespace {
// If it was closed when the program began, a later file with its number is not stderr.
const bool stderr_is_there = ::fcntl(STDERR_FILENO, F_GETFD) >= 0;
}  // namespace

Said& Said::of_process() {
  struct Own {
    Said said{stderr_is_there ? STDERR_FILENO : -1};
    const pid_t process = ::getpid();
  };
  static std::atomic<Own*> own{nullptr};
  Own* mine = own.load(std::memory_order_acquire);
  // In the child of a fork the locks may be held for good, and the lines are the parent's to say.
  while (!mine || mine->process != ::getpid()) {
    auto* made = new Own;
    if (own.compare_exchange_strong(mine, made, std::memory_order_acq_rel)) return made->said;
    delete made;
  }
  return mine->said;
}

void Said::say(std::string_view line) noexcept {
  std::lock_guard lock(mutex_);
  if (lines_.size() == lines_most) {
    ++dropped_;
    return;
  }
  try {
    std::string whole;
    whole.reserve(line.size() + 1);
    whole.append(line).push_back('\n');
    lines_.push_back(std::move(whole));
  } catch (const std::bad_alloc&) {
    if (const size_t room = spare_.capacity(); spare_.empty() && room >= spare_bytes)
      spare_.assign(line.substr(0, room - 1)).push_back('\n');
    else
      ++dropped_;
  }
  waiting_.store(true, std::memory_order_release);
}

namespace {

/// write(2) that does not wait, whatever others have written since poll(): a terminal says that it
/// takes something where it has room for one byte. The descriptor's own flags are the program's.
ssize_t write_at_once(int fd, const char* data, size_t bytes) {
  const ssize_t sent = ::send(fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0 || errno != ENOTSOCK) return sent;
  struct stat found {};
  if (::fstat(fd, &found) == 0 && (S_ISFIFO(found.st_mode) || S_ISCHR(found.st_mode))) {
    char path[32];
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const int again = ::open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (again < 0 && errno == ENXIO) return -1;  // it has no reader any more
    if (again >= 0) {
      const ssize_t written = ::write(again, data, bytes);
      const int error = errno;
      (void)::close(again);
      errno = error;
      return written;
    }
  }
  return ::write(fd, data, bytes);
}

}  // namespace

/// False: stderr takes nothing now. (A pipe that poll() says is writable takes PIPE_BUF bytes at
/// once.) Drops what can never be written: a pipe without a reader would raise SIGPIPE.
bool Said::write_some(std::string& text) {
  if (fd_ < 0) {
    text.clear();
    return true;
  }
  pollfd ready{fd_, POLLOUT, 0};
  const int found = ::poll(&ready, 1, 0);
  if (found < 0 && errno == EINTR) return true;
  if (found <= 0) return false;
  if (ready.revents & (POLLERR | POLLNVAL)) {
    text.clear();
    return true;
  }
  const ssize_t written = write_at_once(fd_, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
  if (written < 0 && (errno == EINTR || errno == EAGAIN)) return errno == EINTR;
  if (written <= 0)
    text.clear();
  else
    text.erase(0, static_cast<size_t>(written));
  return true;
}

void Said::write(std::chrono::milliseconds patience) {
  // Locks of start and runtime may be held: this does not wait, and no work waits for those. And
  // SlowWorks' own.
  none_held("stderr", Rank::engine, static_cast<int>(Rank::slow_work));
  if ((!waits() && patience.count() == 0) || has_own_table()) return;
  const int error = errno;
  const auto end = std::chrono::steady_clock::now() + patience;
  do {
    std::unique_lock writer(writing_, std::try_to_lock);
    if (!writer || !write_all(end)) break;
  } while (any());  // said by a thread that found us writing
  errno = error;
}

bool Said::any() {
  std::lock_guard lock(mutex_);
  return !lines_.empty() || !spare_.empty() || dropped_ > 0;
}

/// The writer: puts the next line into rest_. False: there is none. Throws std::bad_alloc where
/// memory is out for the line about dropped ones: they wait.
bool Said::next_line() {
  std::lock_guard lock(mutex_);
  if (!lines_.empty()) {
    rest_ = std::move(lines_.front());
    lines_.pop_front();
  } else if (!spare_.empty()) {
    rest_.swap(spare_);
  } else if (dropped_ > 0) {
    rest_ = "firn: " + std::to_string(dropped_) +
            " more lines were dropped: stderr was blocked, or memory was short\n";
    dropped_ = 0;
  }
  if (rest_.empty()) waiting_.store(false, std::memory_order_release);
  if (spare_.empty() && spare_.capacity() < spare_bytes) try {
      spare_.reserve(spare_bytes);
    } catch (const std::bad_alloc&) {  // (a later line tries again)
    }
  return !rest_.empty();
}

/// The writer: false where stderr took no more until `end`, or memory is out.
bool Said::write_all(std::chrono::steady_clock::time_point end) try {
  for (;;) {
    if (rest_.empty() && !next_line()) return true;
    if (write_some(rest_)) continue;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd ready{fd_, POLLOUT, 0};
    // A refused wait would be repeated at once, without end.
    if (::poll(&ready, 1, static_cast<int>(left.count())) < 0 && errno != EINTR) return false;
  }
} catch (const std::bad_alloc&) {
  return false;
}

}  // namespace firn
