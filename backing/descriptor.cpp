#include "firn/descriptor.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <new>

namespace firn {

namespace {

constexpr int high = 512;  // beyond what programs that close "everything" usually close
constexpr int free_cell = -1;
constexpr int taken_cell = -2;  // by a thread that fills it, or by one whose descriptor is closed

// Neither its number nor its inode's identifies an open file: both are reused at once, and
// io_uring's descriptors and their kind share one inode. The signal of F_SETSIG is kept with the
// open file, means nothing without O_ASYNC, and is 0 on all other files.
constexpr int mark = 61;

/// The same open file by another number, far from those that programs use; closes the first.
int raised(int fd) {
  if (fd >= high) return ::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? fd : -1;
  rlimit limit{};
  int most = high;
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < rlim_t{high})
    most = static_cast<int>(limit.rlim_cur);
  for (const int from : {high, most / 4 * 3, most / 2, STDERR_FILENO + 1}) {
    if (from <= fd) continue;
    const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, from);
    if (moved < 0) continue;
    (void)::close(fd);  // the other number keeps it open
    return moved;
  }
  (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return fd;
}

}  // namespace

struct Descriptor::Cell {
  std::atomic<int> number{free_cell};
  dev_t device = 0;
  ino_t inode = 0;
  bool marked = false;
  bool known = false;  // the device and inode are

  bool is(const struct stat& found) const {
    return found.st_dev == device && found.st_ino == inode;
  }
  /// Calls only what a forked child may.
  bool ours(int fd) const {
    struct stat found {};
    const bool told = ::fstat(fd, &found) == 0;
    if (told && known && (found.st_dev != device || found.st_ino != inode)) return false;
    // A file system that does not answer (over a network, in a process) leaves it to the mark.
    if (!told && (errno == EBADF || !marked)) return false;
    return !marked || ::fcntl(fd, F_GETSIG) == mark;
  }
};

/// Chunks of cells, which are used again and never given back.
struct DescriptorTable {
  static constexpr size_t chunk_cells = 64;
  using Cell = Descriptor::Cell;
  struct Chunk {
    std::array<Cell, chunk_cells> cells;
    std::atomic<Chunk*> next{nullptr};
  };

  Chunk first;
  std::atomic<Chunk*> likely{&first};  // has a free cell, or is near one that has

  static DescriptorTable& all() {
    static DescriptorTable& table = *new DescriptorTable;
    static const int handled = [] {
      of_process = &table;  // a child may come in the middle of this: it asks for no static's lock
      return ::pthread_atfork(nullptr, nullptr, [] { of_process->close_in_child(); });
    }();
    (void)handled;  // without memory for a handler the child keeps what it inherits
    return table;
  }
  static inline DescriptorTable* of_process = nullptr;

  Cell* take_in(Chunk& chunk) {
    for (Cell& cell : chunk.cells) {
      int none = free_cell;
      if (cell.number.load(std::memory_order_relaxed) == free_cell &&
          cell.number.compare_exchange_strong(none, taken_cell, std::memory_order_acquire)) {
        likely.store(&chunk, std::memory_order_release);
        return &cell;
      }
    }
    return nullptr;
  }

  Cell* take() {
    for (Chunk* from : {likely.load(std::memory_order_acquire), &first})
      for (Chunk* chunk = from; chunk; chunk = chunk->next.load(std::memory_order_acquire))
        if (Cell* cell = take_in(*chunk)) return cell;
    auto* made = new Chunk;
    Cell* cell = take_in(*made);
    std::atomic<Chunk*>* end = &first.next;
    for (Chunk* none = nullptr;
         !end->compare_exchange_weak(none, made, std::memory_order_acq_rel); none = nullptr)
      if (none) end = &none->next;
    return cell;
  }

  void close_in_child() {
    for (Chunk* chunk = &first; chunk; chunk = chunk->next.load(std::memory_order_acquire))
      for (Cell& cell : chunk->cells) {
        const int fd = cell.number.load(std::memory_order_acquire);
        if (fd < 0) continue;
        if (cell.ours(fd)) (void)::close(fd);  // the parent's is open still
        cell.number.store(taken_cell, std::memory_order_relaxed);  // by the copy of its owner
      }
  }
};

Descriptor::Descriptor(int fd) {
  if (fd < 0) return;
  const int error = errno;
  Cell* cell = nullptr;
  try {
    cell = DescriptorTable::all().take();
  } catch (const std::bad_alloc&) {  // no destructor would close it
    (void)::close(fd);
    throw;
  }
  fd = raised(fd);
  struct stat found {};
  cell->known = ::fstat(fd, &found) == 0;
  cell->device = found.st_dev;
  cell->inode = found.st_ino;
  cell->marked = ::fcntl(fd, F_SETSIG, mark) == 0 && ::fcntl(fd, F_GETSIG) == mark;
  cell->number.store(fd, std::memory_order_release);
  cell_ = cell;
  errno = error;
}

Descriptor::~Descriptor() {
  if (!cell_) return;
  const int fd = cell_->number.load(std::memory_order_relaxed);
  // A fork meanwhile: the child finds it closed, and not ours.
  if (fd >= 0 && cell_->ours(fd)) (void)::close(fd);  // nothing of it is to outlive us
  cell_->number.store(free_cell, std::memory_order_release);
}

int Descriptor::get() const {
  const int fd = cell_ ? cell_->number.load(std::memory_order_relaxed) : -1;
  return fd >= 0 ? fd : -1;
}

bool Descriptor::ours() const {
  const int fd = get();
  return fd >= 0 && cell_->ours(fd);
}

unsigned Descriptor::live() {
  unsigned count = 0;
  for (auto* chunk = &DescriptorTable::all().first; chunk; chunk = chunk->next.load())
    for (auto& cell : chunk->cells) count += cell.number.load() >= 0;
  return count;
}

namespace {
/// (/proc/self is the process, whose table the numbers are in.)
struct PathOf {
  char text[40];
  explicit PathOf(int number) { std::snprintf(text, sizeof text, "/proc/self/fd/%d", number); }
};
}  // namespace

/// Is the file by that path still this one? 0, or an errno; EBADF: it is closed, or another file.
int Descriptor::named(const char* path) const {
  if (get() < 0) return EBADF;
  if (!cell_->known) return ENOTSUP;
  struct stat found {};
  if (::stat(path, &found) == 0) return cell_->is(found) ? 0 : EBADF;
  const int error = errno;
  return error == ENOENT && ::access("/proc/self/fd", F_OK) == 0 ? EBADF : error;
}

int Descriptor::reopens() const {
  const PathOf path(get());
  const int error = named(path.text);
  return error != 0 || ::faccessat(AT_FDCWD, path.text, R_OK | W_OK, AT_EACCESS) == 0 ? error
                                                                                     : errno;
}

int Descriptor::reopened(int flags) const {
  const PathOf path(get());
  // Never opens another file, even for an instant: its file system would notice.
  int fd = -1, error = named(path.text);
  if (error == 0) {
    struct stat found {};
    fd = ::open(path.text, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || ::fstat(fd, &found) != 0)
      error = errno;
    else if (!cell_->is(found))
      error = EBADF;
  }
  if (error == 0 && fd <= STDERR_FILENO) {
    const int low = std::exchange(fd, ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    error = fd < 0 ? errno : 0;
    (void)::close(low);
  }
  if (error == 0) return fd;
  if (fd >= 0) (void)::close(fd);
  errno = error;
  return -1;
}

namespace {
#ifndef SYS_close_range
constexpr long SYS_close_range = 436;
#endif
constexpr unsigned unshare_flag = 1u << 1;  // CLOSE_RANGE_UNSHARE
thread_local bool own_table = false;
}  // namespace

bool take_empty_table() {
  // For a range without end the kernel copies only the first word of numbers before it closes.
  if (::syscall(SYS_close_range, 0u, UINT_MAX, unshare_flag) != 0) return false;
  own_table = true;
  return true;
}

bool has_own_table() { return own_table; }
void note_inherited_table() { own_table = true; }

}  // namespace firn
