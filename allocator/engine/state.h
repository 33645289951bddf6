// What the engine's parts keep of a job that they follow, each a struct that one part works on. All
// of it needs the engine's lock. Private to the engine.
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
#include "allocator/blocks/region.h"
#include "allocator/engine/thrash.h"
#include "allocator/lifetimes/events.h"
#include "allocator/lifetimes/places.h"
#include "allocator/lifetimes/rehearse.h"

namespace firn {

using lifetimes::Identity;

/// What is rehearsed; its spans are of the vectors, and set when it is.
struct Stock {
  lifetimes::Rehearsal rehearsal;
  std::vector<lifetimes::Item> items;
  std::vector<lifetimes::Step> steps;
  std::vector<uint64_t> before_ns, in_store;
};

/// Whether more is to be written ahead than rehearsals see a use for: tried where periods take longer
/// than was rehearsed.
struct Trial {
  enum class Of : uint8_t { nothing, what_was_chosen, more };
  Of of = Of::nothing;               // what periods are measured with
  double rehearsed_ns = 0;           // a period with what was chosen
  double chosen = 0, chosen_ns = 0;  // that, and what a period takes with it
  uint64_t from = 0;                 // event number from which periods are measured
  uint64_t from_ns = 0;              // and when that was; 0: not yet
};

/// How much is written ahead (choose.cpp).
struct Choice {
  bool timing = false;               // the period's device times are being taken
  bool due = false;                  // or being thought about
  bool ready = false;                // to be thought about
  uint64_t since = 0;                // event number at which that began
  uint64_t period = 0, made = 0;     // for which was chosen last, and when: events, event number
  Stock stock;
  Trial trial;
};

/// Allocations that are foreseen (births.cpp).
struct Births {
  struct Kind {  // of blocks that are alike to an allocation
    unsigned stream;
    uint32_t grains;
    uint32_t ready;    // that nothing is counted on yet
    uint32_t claimed;  // that allocations are counted on
    uint32_t spared;   // of those, in a round of reclaim_parked()
  };
  uint64_t done_at = UINT64_MAX;   // event number up to which all was done
  std::vector<Kind> kinds;         // of the coming allocations
  struct Wants {
    int64_t balance = 0;
    uint32_t ready = 0;
    std::vector<uint64_t> at;      // event numbers
  };
  std::map<std::pair<unsigned, uint32_t>, Wants> wants;  // by stream and grains
  uint64_t wants_made = UINT64_MAX;                      // event number
  std::vector<uint16_t> stream_of; // by identity: the stream + 1 that allocated it last
};

/// Planned places (places.cpp, plan_places.cpp, regions.cpp).
struct Placing {
  struct Place {
    Identity identity;
    uint64_t known_as;  // the history's bytes
    uint64_t address, bytes;
    Region* region;
    Block* block;   // null until it is first handed out
    bool barred;    // its address may be known to others
    uint32_t next;  // of the identity's: place + 1; an identity may be played twice at once
  };
  bool active = false;
  std::vector<Place> places;
  std::vector<uint32_t> of;        // by identity: its first place + 1
  uint64_t period = 0, grains = 0; // that was planned for; of all regions, as planned
  std::map<std::pair<Identity, uint64_t>, uint64_t> bytes_of;  // by identity and the history's
                                                               // bytes: what was asked for last
  std::vector<uint64_t> left_at;   // by identity: the event at which it last left the device
  bool due = false, ready = false; // a plan is being made; its stock waits for it
  lifetimes::PlacesInput stock;
  uint64_t seen = 0, since = 0;    // a period, and the event from which on it was that
  uint64_t next = 0;               // event number before which nothing is planned
  uint64_t rounds_waited = 1;
  uint64_t rounds_watched = 0, maps_watched = 0;  // since it was last judged; in those
  uint64_t round = 0;              // event number at which the round of the period began
  uint64_t adopted = 0;            // event number at which the plan was taken over
  uint64_t maps_before = 0, placed_before = 0, missed_before = 0;  // counted then
};

/// Of one decision, kept for its memory.
struct Scratch {
  std::vector<Block*> blocks;
  std::vector<lifetimes::Item> items;
  std::vector<lifetimes::Step> steps;
  std::vector<uint32_t> item_of;      // by identity: item + 1 that plays it
  std::vector<uint32_t> first_of;     // and that played it first
};

/// Written under the lock, read without it: see Engine::failures().
struct Failed {
  Relaxed<uint64_t> lost_blocks, host_corrupt, device_corrupt, unseen_writes;
};

/// While who waits is asked for (notices.cpp).
struct Notices {
  Waiters waiters;
  uint64_t since = 0;                 // tick_ when that began
  uint64_t working_bytes = 0;         // the most that was used since and was alive at once
  std::set<std::string, std::less<>> makers;  // never emptied: words that others have
  struct Made {
    uint32_t generation;
    const char* maker;
  };
  std::unordered_map<uint32_t, Made> made;  // by descriptor
};

}  // namespace firn
