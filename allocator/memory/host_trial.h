// Finds out, in another process, whether the driver can make frames of host memory: some drivers
// end the process that asks (cuMemCreate of a host node dies of SIGSEGV on machines with nodes that
// have no memory).
//
// Owns the process's answers, kept until its end. Lock: one of its own. A trial takes ten seconds at
// most, once for a node; who asks meanwhile waits for it.
#pragma once

#include <string>

#include "firn/result.h"

namespace firn {

/// The program that tries, beside the library or program that this code is in.
inline constexpr const char* host_trial_program = "firn-try-host";

/// From here on trials run, in a process of their own; before, and in simulations, none does.
void try_host_apart();

/// Would try_host_memory() answer at once?
bool host_trial_known(const std::string& library, int node);

/// Can `library` (the driver's path) make host memory of that node? Tried once for each. Errors:
/// not_supported, with the reason.
Result<void> try_host_memory(const std::string& library, int node);

}  // namespace firn
