// Whether the driver can make frames of host memory, found out by another process: some drivers end
// the process that asks (cuMemCreate of a host node dies of SIGSEGV on machines with nodes that have
// no memory).
//
// Owns the process's answers, kept until its end. Lock: one of its own, held while a trial runs, at
// most ten seconds, once for a node.
#pragma once

#include <string>

#include "firn/result.h"

namespace firn {

/// The program that tries, beside the library or program that this code is in.
inline constexpr const char* host_trial_program = "firn-try-host";

/// From here on it is tried in a process of its own; before, and in simulations, nothing is tried.
void try_host_apart();

/// Can `library` (the driver's path) make host memory of that node? Asked once for each. Errors:
/// not_supported, in words that say why not.
Result<void> try_host_memory(const std::string& library, int node);

}  // namespace firn
