// Lines of the program: the calling thread's, and those behind the work of autograd's threads,
// which have no Python. Forward operators and the nodes of the graph that they make have one
// sequence number per thread: while lines are asked for, each forward operator's line is remembered
// by it, and a node that runs finds it there.
//
// Owns: a table of a fixed size, and the calling thread's node. Locks: one, a leaf. Taking a line
// takes Python's GIL: do so under no lock and holding no block, since the GIL's holder may be
// waiting for one.
#pragma once

#include <string>
#include <string_view>

namespace firn::pytorch {

/// Starts or stops remembering forward operators' lines and noting nodes as they run. Call after
/// the observer was installed: it then lets go of an operator's blocks before this takes its line.
void observe_lines(bool wanted);

/// "FILE:LINE in FUNCTION" of the calling thread's innermost frame that is not torch's; in a thread
/// without any, "backward of OPERATOR at FILE:LINE in FUNCTION", or as much of it as is known; at
/// least `otherwise`, the operator that runs.
std::string line_of_thread(std::string_view otherwise);

}  // namespace firn::pytorch
