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
#include "allocator/blocks/piece_ref.h"
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
  std::vector<Block*> live_;      // every large block with a descriptor in use
  std::vector<Block*> parked_;    // ready blocks, taken by park_ready(): first in line to reclaim
  std::vector<Block*> deferred_;  // freed, waiting for recorded streams
  std::atomic<uint32_t> deferred_count_{0};  // read without the lock
  Use fence_;                     // behind the work of free_behind()'s stream
  uint64_t fence_given_ = 0;      // its argument at that time
  std::vector<Block*> draining_;  // freed while bytes of theirs came, or were away
  std::vector<std::pair<Block*, uint32_t>> aside_;  // segments to be taken back, and their lives
  std::deque<std::pair<PieceRef, unsigned>> prefetches_;  // (block, stream)
  uint64_t births_apart_ = 0;      // pages of blocks being mapped ahead of their allocation

  bool pressed_ = false;           // memory was short at least once
  bool spilling_stopped_ = false;  // stop_spilling()
  bool spilling_ended_ = false;    // for good
  unsigned waiting_ = 0;           // threads in make_room
  int64_t waiting_holds_ = 0;      // holds of those threads
  unsigned waiting_others_ = 0;    // of those, threads that can go on without room
  std::vector<uint64_t> open_waits_;  // waits that are not in the statistics' total yet
  struct Still {                   // since when nothing has left
    uint64_t since_ns = 0, looked_ns = 0, left = 0;
    bool given_up = false;         // make_room() gave up because of this, or of `starved`
    bool starved = false;          // all threads with holds waited for room
  } still_;
  uint64_t ahead_tick_ = 0;
};

}  // namespace firn
