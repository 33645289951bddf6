// The processes of one job on this machine, as launchers announce them, and each one's spill
// directories. Owns: nothing. Locks: none (reads the environment; called at start).
#pragma once

#include <cstddef>
#include <vector>

namespace firn {

struct LocalRank {
  unsigned rank = 0, ranks = 1;  // on this machine
};

/// From LOCAL_RANK and LOCAL_WORLD_SIZE (torchrun), or other launchers' names for them; {0, 1} if
/// they are not set, or nonsense.
LocalRank local_rank();

/// [rank][directory]: how far that rank's GPU is from that directory's SSD; less is nearer.
using Distances = std::vector<std::vector<unsigned>>;

/// The rank's own directories (by index, ascending), where it places what it spills as long as
/// there is room. Every rank computes the same from the same words.
///
///  - As many directories as ranks, or more: each rank has the same number for itself; all share
///    the rest. Ranks that wait for each other spill at the same time, so that striping over
///    everything would give each no more; but an SSD of its own answers a rank's fault without
///    others' writes in front of it, and may be the nearest.
///  - Fewer, and the ranks are a multiple of them: each directory serves equally many ranks.
///  - Fewer otherwise: every rank has all. A rank that shared its SSD with more ranks than others
///    do would keep all of them waiting.
///
/// Within that the sum of the distances is the least; if sums are equal (`distances` is empty:
/// nothing is known), ranks get directories in the order in which they are written.
std::vector<size_t> dirs_of_rank(LocalRank who, size_t dirs, const Distances& distances);

}  // namespace firn
