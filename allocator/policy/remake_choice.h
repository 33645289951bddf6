// Chooses what to make again rather than move or keep, for one iteration of a program on a machine
// of given memory and bandwidths. A pure function, deterministic: no clock, no lock.
//
// Programs are searched for, in which some values are made again, and each is rated by the least
// waits that it leaves (waits.h), what runs again, and the driver's calls for mapping
// (remake_search.h). The best of them are rehearsed (rehearse.h), as finely and as many as there
// are few operators, and so is the program as it was, if its own least waits do not decide: where
// values are moved, more is waited for than the least. From the fastest, single values are turned
// over and rehearsed, while there are rehearsals left. The program stays as it was unless another
// is clearly faster.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/lifetimes/rehearse.h"
#include "allocator/lifetimes/rewrite.h"

namespace firn {

/// A result that is made again: its block leaves, without a copy, behind operator `leaves_behind`.
struct MadeAgain {
  uint32_t maker = 0, value = 0, leaves_behind = 0;  // numbers in the operators that were given
};

struct RemakeChoice {
  std::vector<MadeAgain> made_again;  // none of a value that is written again before the cut
  lifetimes::Rewritten rewritten;  // values 0: nothing is made again, the program is as it was
  // An iteration of either, as rehearsed; alone_ns may be the least that it takes instead. 0: all
  // fits, or nothing has to be waited for.
  double alone_ns = 0, chosen_ns = 0;
  unsigned rated = 0;  // programs
};

/// How many times slower than measured a bandwidth may count.
inline constexpr double slowed_most = 8;

/// `machine.capacity`: pages for all values; an operator that needs more counts as if they were
/// just enough for it. `map_ns`: what mapping a span and unmapping it take of
/// the driver's time; 0: nothing.
/// `measured_ns`: what an iteration took that only moves; 0: not measured. Where that is more than
/// the least that the bandwidths allow, moving takes more than they say (mapping, faults on demand,
/// a processor that copies): they count as so much smaller that it would be the least, at most
/// `slowed_most` times.
RemakeChoice choose_remake(const lifetimes::Operators& operators,
                           const lifetimes::RehearsalMachine& machine, double map_ns = 0,
                           double measured_ns = 0);

}  // namespace firn
