// How an engine is opened (engine.h): its device, budget and ways, which stay as they are.
// Owns: nothing; what pointers refer to outlives the engine. Locks: none.
#pragma once

#include <atomic>
#include <cstdint>

#include "firn/driver.h"

namespace firn {

struct HostRoom;   // allocator/memory/host_tier.h
class SlowWorks;  // include/firn/slow_work.h
namespace record {
class Recorder;  // allocator/record/recorder.h
}

class Baseline;  // baseline.h

/// How to choose the block that leaves next, and what to bring back ahead of its use.
enum class Policy : uint8_t {
  age,       // the longest unused, weighted by size; nothing is brought back ahead
  lifetime,  // by next uses, known from the period that was found; age until then
};

struct EngineOptions {
  int device = 0;                  // ordinal
  CUcontext context = nullptr;     // the device's primary context
  uint64_t budget_bytes = 0;       // most bytes of frames held at any time; a multiple of 2 MiB
  uint64_t host_bytes = 256u << 20;  // host tier and staging together
  uint64_t piece_bytes = 8u << 20;   // unit of copying and writing, at most span_bytes
  uint64_t span_bytes = 32u << 20;   // unit of mapping within a large block; 2 to 32 MiB
  double watch_fraction = 0.5;
  double spare_fraction = 1. / 16;   // Policy::lifetime: part of the memory made valid elsewhere
                                     // ahead, beyond the foreseen shortage
  uint64_t io_patience_ns = 60'000'000'000;  // how long reads and writes of the store that fail are
                                             // tried again
  bool adversarial = false;
  bool verify = false, guard = false, poison = false;  // tests: movement/guard.cpp
  bool sums = false;                 // of copies in host memory: movement/summing.cpp
  bool places = false;               // Policy::lifetime: planned places for blocks that never leave
  Policy policy = Policy::age;
  Baseline* baseline = nullptr;  // to compare with: Policy::lifetime's own decisions otherwise
  bool notices = false;              // fault storms and thrash are said on stderr, once each
  SlowWorks* slow_works = nullptr;   // receives decisions that take long; null: the process's own
  bool copy_gate = false;  // copies out leave gaps for mapping (copy_gate.h): the wall clock only
  bool no_bytes = false;  // simulation: staging is addresses without memory
  bool served = false;  // a thread calls pump() all the while: only that one waits for the device
  bool no_wall_clock = false;  // simulation: planning stops at the same step each time
  /// The rest of the process's host budget, shared by its engines; null: host_bytes is this
  /// engine's own.
  std::atomic<uint64_t>* host_left = nullptr;
  uint64_t host_own = 0;  // then: what this engine has in any case
  HostRoom* host_room = nullptr;  // what the machine can still give; null: no limit
  bool host_ahead = false;  // prepare_host() is called when host_due(); only it pins memory
  /// Receives every allocation and free, when tracing; null otherwise. Outlives the engine.
  record::Recorder* recorder = nullptr;
};

}  // namespace firn
