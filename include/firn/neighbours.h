// How many processes of Firn share a directory, an SSD or a machine's memory just now, so that each
// takes its share of it.
//
// Each process holds a read lock of one byte, at a random offset, on directories that stand
// for what is shared, and counts those locks. The kernel keeps them with the open descriptor: they
// are gone with the process, however it dies, so that there are no files, no slots to clear, no
// process ids to mistrust. A directory cannot be opened for writing, hence no process can hold a
// write lock there: a read lock is never refused or waited for, and a dead process blocks nothing.
// They work between users and, on the same directory, between containers. A file system without
// such locks, or a directory that may not be read, counts one.
//
// Any user may lock a directory that he may read, as often as he likes, and the kernel does not
// tell whose a lock is. So each process also holds a lock on a directory that only its user may
// read: those are the user's own. The others together count for as many at most.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "firn/descriptor.h"

namespace firn {

class Neighbours {
 public:
  /// Joins those at `paths`, which are directories; skips one that cannot be opened or locked. A
  /// forked child is no neighbour.
  static Neighbours join(const std::vector<std::string>& paths);
  Neighbours(Neighbours&&) noexcept = default;
  Neighbours& operator=(Neighbours&&) = delete;

  /// The number of neighbours at the directory that has most, this process included; at most twice
  /// `count_most`. Some three system calls for each. By any thread, also one with a table of
  /// descriptors of its own. Never waits, but takes some 10 us if there are many: hold no lock.
  unsigned count() const;
  static constexpr unsigned count_most = 32;

 private:
  struct Directory {
    Descriptor directory;
    bool own = false;    // only its user may read it
    int64_t begin = 0;   // of its range in own_
  };
  Neighbours() = default;
  unsigned count(const Directory& joined) const;

  std::vector<Directory> directories_;
  Descriptor own_;  // a directory that only its user may read, with a range for each directory
};

}  // namespace firn
