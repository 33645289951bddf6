// State that the engine's parts keep of a job that they follow, one struct for each part. All of it
// needs the engine's lock. Private to the engine.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "allocator/base/relaxed.h"
#include "allocator/blocks/block.h"
#include "allocator/engine/thrash.h"

namespace firn {

/// Allocations that are foreseen (births.cpp).
struct Births {
  struct Kind {  // of blocks that can serve the same allocation
    unsigned stream;
    uint32_t pages;
    uint32_t ready;    // no allocation counts on these yet
    uint32_t claimed;  // allocations count on these
    uint32_t spared;   // of those, in a round of reclaim_parked()
  };
  uint64_t done_at = UINT64_MAX;   // event number up to which all was done
  std::vector<Kind> kinds;         // of the coming allocations
  struct Wants {
    int64_t balance = 0;
    uint32_t ready = 0;
    std::vector<uint64_t> at;      // event numbers
  };
  std::map<std::pair<unsigned, uint32_t>, Wants> wants;  // by stream and pages
  uint64_t wants_made = UINT64_MAX;                      // event number
};

/// Written under the lock, read without it: see Engine::failures().
struct Failed {
  Relaxed<uint64_t> lost_blocks, host_corrupt, device_corrupt, unseen_writes;
};

/// While the waiting operators are asked for (notices.cpp).
struct Notices {
  Waiters waiters;
  uint64_t since = 0;                 // tick_ when that began
  uint64_t working_bytes = 0;         // the most that was used since and was alive at once
  std::set<std::string, std::less<>> makers;  // never emptied: others point to its words
  struct Made {
    uint32_t generation;
    const char* maker;
  };
  std::unordered_map<uint32_t, Made> made;  // by descriptor
};

}  // namespace firn
