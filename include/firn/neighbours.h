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
//
// Anybody may lock a directory that he may read, as often as he likes, and the kernel does not tell
// whose a lock is. So each also holds a lock on a directory that only its user may read: those are
// the user's own. All others together count as many as these at most.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "firn/descriptor.h"

namespace firn {

class Neighbours {
 public:
  /// Joins those at `places`, which are directories; one that cannot be opened or locked is left
  /// out. A forked child is no neighbour, and takes no place.
  static Neighbours join(const std::vector<std::string>& places);
  Neighbours(Neighbours&&) noexcept = default;
  Neighbours& operator=(Neighbours&&) = delete;

  /// How many there are, this one included: at the place where there are most. At most twice
  /// `count_most`, and some three system calls for each that is counted. By any thread, also one
  /// with a table of descriptors of its own. Never waits, but takes some 10 us where there are
  /// many: hold no lock.
  unsigned count() const;
  static constexpr unsigned count_most = 32;

 private:
  struct Place {
    Descriptor directory;
    bool own = false;    // only its user may read it
    int64_t begin = 0;   // of its range in own_
  };
  Neighbours() = default;
  unsigned count(const Place& place) const;

  std::vector<Place> places_;
  Descriptor own_;  // a directory that only its user may read, with a range for each place
};

}  // namespace firn
