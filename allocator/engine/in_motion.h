// The engine's work in flight, and what was decided. Private to the engine.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/blocks/block.h"
#include "allocator/engine/hint_queue.h"
#include "allocator/lifetimes/events.h"
#include "firn/store.h"
#include "firn/thread_safety.h"

namespace firn {

/// A thread's wait for memory, known from begin() until this ends. Under the engine's lock.
class OpenWait {
 public:
  explicit OpenWait(std::vector<uint64_t>& open) : open_(open) {}
  ~OpenWait() FIRN_HELD {
    if (begun_) open_.erase(std::find(open_.begin(), open_.end(), *begun_));
  }
  OpenWait(const OpenWait&) = delete;
  OpenWait& operator=(const OpenWait&) = delete;
  void begin(uint64_t now_ns) FIRN_HELD {
    if (begun_) return;
    open_.push_back(now_ns);  // (may throw: then nothing has begun)
    begun_ = now_ns;
  }

 private:
  std::vector<uint64_t>& open_;  // when they began
  std::optional<uint64_t> begun_;
};

/// Blocks and work on their way, or due to be. All of it needs the engine's lock.
struct InMotion {
  std::vector<Block*> live_ FIRN_GUARDED;  // every large block with a descriptor in use
  // Ready blocks, taken by park_ready(): first in line to reclaim.
  std::vector<Block*> parked_ FIRN_GUARDED;
  std::vector<Block*> deferred_ FIRN_GUARDED;  // freed, waiting for other streams
  std::atomic<uint32_t> deferred_count_{0};    // read without the lock
  Use fence_ FIRN_GUARDED;                     // behind the work of free_behind()'s stream
  uint64_t fence_given_ FIRN_GUARDED = 0;      // its argument at that time
  std::vector<Block*> draining_ FIRN_GUARDED;  // freed while bytes of theirs came, or were away
  std::vector<Block*> unkept_ FIRN_GUARDED;    // freed, and maybe not needed for a recipe any more
  // Segments to be taken back, and their lives.
  std::vector<std::pair<Block*, uint32_t>> aside_ FIRN_GUARDED;
  HintQueue hints_ FIRN_GUARDED;          // not due yet
  std::deque<Hint> prefetches_ FIRN_GUARDED;  // due, as far as they lacked room: the first goes on
  // Pages of blocks being mapped ahead of their allocation.
  uint64_t births_apart_ FIRN_GUARDED = 0;

  bool pressed_ FIRN_GUARDED = false;       // memory was short at least once
  bool spilling_stopped_ FIRN_GUARDED = false;  // stop_spilling()
  bool spilling_ended_ FIRN_GUARDED = false;  // for good
  unsigned waiting_ FIRN_GUARDED = 0;       // threads in make_room
  int64_t waiting_holds_ FIRN_GUARDED = 0;  // holds of those threads
  unsigned waiting_others_ FIRN_GUARDED = 0;  // of those, threads that can go on without room
  // Waits that are not in the statistics' total yet.
  std::vector<uint64_t> open_waits_ FIRN_GUARDED;
  struct Still {                            // since when nothing has left
    uint64_t since_ns = 0, looked_ns = 0, left = 0;
    uint64_t spans = 0, copied = 0;  // given up until now; bytes that were copied out until then
    bool futile = false;           // copies give way to each other, and none leaves
    bool given_up = false;         // make_room() gave up because of this, or of `starved`
    bool starved = false;          // all threads with holds waited for room
  } still_ FIRN_GUARDED;
  uint64_t ahead_tick_ FIRN_GUARDED = 0;
};

}  // namespace firn
