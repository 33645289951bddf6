// Several processes of one job on this machine, as launchers tell them, and which of the spill
// directories are whose. Owns: nothing. Locks: none (reads the environment; called at start).
#pragma once

#include <cstddef>
#include <vector>

namespace firn {

struct LocalRank {
  unsigned rank = 0, ranks = 1;  // on this machine
};

/// From LOCAL_RANK and LOCAL_WORLD_SIZE (torchrun), or what other launchers call them; {0, 1} where
/// nothing is said, or nonsense.
LocalRank local_rank();

/// [rank][directory]: how far that rank's GPU is from that directory's SSD; less is nearer.
using Distances = std::vector<std::vector<unsigned>>;

/// The directories (by index, ascending) that are the rank's own, where it places what it spills as
/// long as there is room. Every rank computes the same from the same words.
///
///  - As many directories as ranks, or more: each rank has the same number for itself, and what is
///    left over is everybody's. Ranks that wait for each other spill at the same time, so that
///    striping over everything would give each no more; but an SSD of one's own answers a fault
///    without others' writes in front of it, and may be the one that is near.
///  - Fewer, and the ranks are a multiple: each directory serves as many ranks.
///  - Fewer otherwise: everybody has all. A rank that shared its SSD with more ranks than another
///    does would keep all of them waiting.
///
/// Within that the sum of the distances is the least there is; where it is equal (nothing is known:
/// `distances` is empty), directories go to ranks in the order in which they are written.
std::vector<size_t> dirs_of_rank(LocalRank who, size_t dirs, const Distances& distances);

}  // namespace firn
