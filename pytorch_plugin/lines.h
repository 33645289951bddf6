// The program's lines: of the calling thread, and of what autograd's threads, which have no Python,
// work on. Forward operators and the nodes of the graph that they make have one sequence number per
// thread: while lines are asked for, each forward operator's line is remembered by it, and a node
// that runs is found there.
//
// Owns: a table of a fixed size, and what the calling thread's node is. Locks: one, a leaf. Taking
// a line takes Python's GIL: under no lock and holding no block, for whoever has the GIL may be
// waiting for one.
#pragma once

#include <string>
#include <string_view>

namespace firn::pytorch {

/// From now on, or no longer: forward operators' lines are remembered, and nodes told when they
/// run. After the observer was installed: what it holds for an operator is let go of before
/// this looks.
void observe_lines(bool wanted);

/// "FILE:LINE in FUNCTION" of the calling thread's innermost frame that is not torch's; in a thread
/// without any, "backward of OPERATOR at FILE:LINE in FUNCTION", or as much of it as is known; at
/// least `otherwise`, the operator that runs.
std::string line_of_thread(std::string_view otherwise);

}  // namespace firn::pytorch
