// Descriptors of Firn's own in a program that does not know of them: it may close numbers that it
// never opened (os.closerange, a daemon's start), and it may fork.
//
// Each is moved out of the way, to a number of 512 or more, is closed in programs that are started
// from here, and in a forked child as soon as there is one: a child that outlives its parent keeps
// no spill file, lock, socket or device memory of the parent's. ours() tells whether the number is
// still the file that was opened.
//
// Owns: a table of all live descriptors, for the child's handler. Locks: none (atomics; a forked
// child may run while threads of the parent held any lock).
#pragma once

#include <utility>

namespace firn {

class Descriptor {
 public:
  Descriptor() = default;
  /// Takes `fd` over and moves it to a number of 512 or more, or as high as RLIMIT_NOFILE lets; it
  /// stays where it is when there is none. Negative: none. Keeps errno.
  explicit Descriptor(int fd);
  Descriptor(Descriptor&& other) noexcept : cell_(std::exchange(other.cell_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(cell_, other.cell_);
    return *this;
  }
  /// Closes it, if it is still ours.
  ~Descriptor();

  /// -1: none, or this is a forked child, where it is closed.
  int get() const;
  explicit operator bool() const { return get() >= 0; }

  /// Is the number still the open file that was given? Two system calls, about 200 ns.
  bool ours() const;

  /// The same file opened anew, in the calling thread's table, whichever that is, by a number that
  /// is no standard stream's; the caller's to close. -1, with the errno of reopens() or open(2).
  int reopened(int flags) const;
  /// Whether reopened() would work with O_RDWR: 0, or the errno: EBADF if the process's number is
  /// closed, or another file's by now. Opens nothing.
  int reopens() const;

  /// The number of live descriptors in this process. For tests.
  static unsigned live();

 private:
  friend struct DescriptorTable;
  int named(const char* path) const;
  struct Cell;
  Cell* cell_ = nullptr;  // in the table, which never shrinks
};

/// From here on the calling thread, and threads that it starts, have an empty table of descriptors
/// of their own: no other thread can close what they open, or reuse its number. The process's files
/// stay as they are; but the kernel copies the first 64 numbers, and closes the copies, which their
/// file systems notice (flush). False, with errno: the kernel (before 5.9), or a container's
/// seccomp filter, has no close_range(2).
bool take_empty_table();
/// Has the calling thread such a table? Its number 2 is not stderr.
bool has_own_table();
/// Called by a thread that was started by one with such a table: they share it.
void note_inherited_table();

}  // namespace firn
