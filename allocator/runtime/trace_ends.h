// A trace's first row and its last ones: the process, and its totals.
// Owns: nothing. Locks: the trace's.
#pragma once

#include <vector>

#include "allocator/engine/engine.h"
#include "allocator/record/trace.h"
#include "allocator/runtime/config.h"

namespace firn {

void trace_begin(TraceWriter& trace, uint64_t now_ns, const Config& config);
/// Writes the last rows and flushes: the process is about to end.
void trace_end(TraceWriter& trace, uint64_t now_ns, const std::vector<EngineStats>& devices);

}  // namespace firn
