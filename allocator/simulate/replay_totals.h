// Counters of a replay, and the means of its steady iterations.
// Owns: nothing. Locks: none.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/engine/engine.h"
#include "allocator/simulate/host_work.h"
#include "allocator/simulate/replay.h"

namespace firn::simulate {

/// Counters that only grow; the difference of two is what an interval did.
struct Totals {
  EngineStats engine;
  HostTotals host;
  uint64_t stall_for_host_ns = 0;
  uint64_t written_bytes = 0, read_bytes = 0;
  std::vector<uint64_t> written_by_ssd;
};

/// Of what `count` iterations did between the two.
void add_means(ReplayResult& r, const Totals& begin, const Totals& end, double count);

}  // namespace firn::simulate
