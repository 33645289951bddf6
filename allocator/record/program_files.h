// Writes an iteration as the two files that `firn simulate PREFIX` reads: PREFIX.tensors.csv and
// PREFIX.kernels.csv. Never writes what the reader would refuse.
// Owns: nothing. Locks: none.
#pragma once

#include <string>

#include "allocator/record/iteration.h"
#include "firn/result.h"

namespace firn::record {

/// "job.csv": "job"; other names are prefixes as they are.
std::string program_prefix(const std::string& trace_file);

/// Removes an earlier run's files of these names, so that a crash leaves no files of another run.
void remove_program(const std::string& prefix);

/// Writes both files under other names and renames them. `iteration` has a kernel. Errors (io) name
/// the file; neither file exists then.
Result<void> write_program(const Recording& recording, const Iteration& iteration,
                           const std::string& prefix);

}  // namespace firn::record
