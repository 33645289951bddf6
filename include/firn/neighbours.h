// How many processes of Firn share a directory, an SSD or a machine's memory just now, so that each
// takes its share of it.
//
// Each holds a read lock of one byte, at a place drawn at random, on directories that stand for
// what is shared, and whoever asks counts those locks. The kernel keeps them with the open
// descriptor: they are gone with the process, however it dies, so that there are no files, no
// slots to clear, no process ids to mistrust. Nobody can write to a directory, hence nobody can
// hold a write lock there: no read lock is ever refused or waited for, and a dead process holds
// nothing up. They work between users and, on the same directory, between containers. A file
// system that has no such locks, or a directory that may not be read, counts one.
#pragma once

#include <string>
#include <vector>

namespace firn {

class Neighbours {
 public:
  /// Joins those at `places`, which are directories; one that cannot be opened or locked is left
  /// out. A forked child is no neighbour of its parent's, and while it lives keeps its place.
  static Neighbours join(const std::vector<std::string>& places);
  Neighbours(Neighbours&&) noexcept;
  Neighbours& operator=(Neighbours&&) = delete;
  ~Neighbours();

  /// How many there are, this one included: at the place where there are most. A few system calls
  /// for each of them; never waits.
  unsigned count() const;

 private:
  Neighbours() = default;
  std::vector<int> locked_;  // descriptors, each with its lock
};

}  // namespace firn
