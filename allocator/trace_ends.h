// A trace's first row and its last ones, which tell about the process and what it came to.
// Owns: nothing. Locks: the trace's.
#pragma once

#include <vector>

#include "allocator/config.h"
#include "allocator/engine.h"
#include "allocator/trace.h"

namespace firn {

void trace_begin(TraceWriter& trace, uint64_t now_ns, const Config& config);
/// Writes out what there is: the process is about to end.
void trace_end(TraceWriter& trace, uint64_t now_ns, const std::vector<EngineStats>& devices);

}  // namespace firn
