// Making room: a ladder of means, from the cheapest to the dearest, climbed again after each wait
// until the room is there or nothing can bring it any more; then an error says what stays and why.
//
//   free_frames        frames that are free
//   carried_out        frames to be unmapped, and of blocks mapped ahead of their allocation
//   ready_blocks       freed blocks that no allocation to come is counted on
//   (from here on memory is short)
//   evict_blocks       regions' idle frames; blocks leave, by the plan or by age
//   wait_for_moves     while anything moves: copies, unmappings, other threads' work
//   last_reserves      all ready blocks, segments of small blocks, what the device may have now
//   others_release     while other threads hold blocks, which they will release
//
// A rung may have released the lock when it returns, where it says so.
#include <algorithm>
#include <optional>
#include <utility>

#include "allocator/engine/hot.h"
#include "firn/canary.h"

namespace firn {

namespace {
// How long all threads with holds have to wait before one goes on without room.
constexpr uint64_t starved_ns = 50'000'000;
// How long other threads' holds are waited for.
constexpr uint64_t others_ns = 10'000'000'000;
}  // namespace

/// One thread's search for room, and where it stands on the ladder.
class EngineImpl::RoomSearch {
 public:
  RoomSearch(EngineImpl& engine, Lock& lock, const RoomWanted& wanted)
      : engine_(engine),
        lock_(lock),
        wanted_(wanted),
        generation_(wanted.block ? uint32_t{wanted.block->generation} : 0),
        mine_(engine.thread_holds()),
        open_(engine.open_waits_) {
    ++engine.waiting_;
    engine.waiting_holds_ += mine_;
    engine.waiting_others_ += wanted.gives_up;
  }
  ~RoomSearch() {
    --engine_.waiting_;
    engine_.waiting_holds_ -= mine_;
    engine_.waiting_others_ -= wanted_.gives_up;
  }
  RoomSearch(const RoomSearch&) = delete;
  RoomSearch& operator=(const RoomSearch&) = delete;

  /// An empty reservation: the block it is for was freed meanwhile.
  Result<Reservation> run() FIRN_HELD {
    for (;;) {
      if (engine_.health_.dead()) return engine_.health_.error();
      refusals_ = engine_.health_.refusals();
      reservation_ = Reservation();
      if (free_frames() || carried_out() || ready_blocks()) return found();
      if (wanted_.block && wanted_.block->generation != generation_) return Reservation();
      memory_is_short();
      if (evict_blocks()) return found();
      begin_waiting();
      switch (moving() ? wait_for_moves() : last_reserves()) {
        case Then::again: continue;
        case Then::give_up: break;
      }
      return give_up();
    }
  }

 private:
  enum class Then { again, give_up };
  static constexpr Then again = Then::again;

  // The rungs that may end the search. True: the room is there.
  bool free_frames() FIRN_HELD {
    reservation_ = engine_.frames_.reserve(wanted_.granules);
    return reservation_.granules() == wanted_.granules;
  }
  bool carried_out() FIRN_HELD {  // may release the lock
    engine_.pump_locked();
    (void)engine_.carry_out_unmappings(lock_, wanted_.granules);
    if (free_frames()) return true;
    if (engine_.mapper_.mappings_due() == 0) return false;
    engine_.drop_births();
    (void)engine_.carry_out_mappings(lock_);
    return free_frames();
  }
  bool ready_blocks() FIRN_HELD {  // may release the lock
    engine_.park_ready(false);
    engine_.reclaim_parked(wanted_.granules, true);
    (void)engine_.carry_out_unmappings(lock_, wanted_.granules);
    return free_frames();
  }
  bool evict_blocks() FIRN_HELD {  // may release the lock
    const uint64_t lacking = wanted_.granules * granule_pages;
    uint64_t coming = coming_pages();
    regions_wait_ = false;
    if (coming < lacking && !engine_.placed_.regions().empty()) {
      const uint64_t idle = engine_.reclaim_regions(wanted_.granules);
      coming = std::max(coming, engine_.frames_.available() * granule_pages) + idle;
      regions_wait_ = idle > 0;
    }
    unmapped_ = engine_.mapper_.spans_given_up();
    if (coming < lacking) engine_.evict(lacking - coming, wanted_.block);
    changed_ = engine_.pump_locked();
    engine_.reclaim_parked(wanted_.granules);
    changed_ |= engine_.movement_.carry_out_sums(lock_);
    changed_ |= engine_.carry_out_unmappings(lock_, wanted_.granules);
    return free_frames();
  }

  /// Pages still on the device that will leave it without further eviction.
  uint64_t coming_pages() const FIRN_HELD {
    uint64_t pages = engine_.pages_soon() + engine_.births_apart_;
    for (const auto* blocks : {&engine_.parked_, &engine_.deferred_, &engine_.draining_})
      for (const Block* block : *blocks) pages += block->device;
    return pages;
  }

  void memory_is_short() FIRN_HELD {  // may release the lock
    if (!wanted_.block && !short_before_) ++engine_.counted_.retry_count;
    short_before_ = true;
    engine_.pressed_ = true;
    engine_.learn(lock_);
  }

  /// (A touch counts its whole wait, which began before this.)
  void begin_waiting() FIRN_HELD {
    if (begin_) return;
    begin_ = engine_.clock_.now_ns();
    if (wanted_.block) return;
    engine_.begin_stall();
    open_.begin(*begin_);
  }
  void count_wait() FIRN_HELD {
    if (begin_ && !wanted_.block)
      engine_.count_stall(*begin_, nullptr, wanted_.granules * granule_bytes);
  }
  Result<Reservation> found() FIRN_HELD {
    count_wait();
    return std::move(reservation_);
  }
  Result<Reservation> give_up() FIRN_HELD {
    count_wait();
    return engine_.no_room(wanted_.granules, wanted_.block);
  }

  /// (Blocks that left may have freed parts of shared frames only: then more have to leave. And
  /// while the driver refuses to answer, it is not known.)
  bool moving() FIRN_HELD {
    if (segments_wait_) segments_wait_ = engine_.release_segments();
    return regions_wait_ || segments_wait_ || unmapped_ != engine_.mapper_.spans_given_up() ||
           engine_.something_moves() || engine_.health_.refusals() != refusals_;
  }
  Then wait_for_moves() FIRN_HELD {  // may release the lock
    if (FIRN_CANARY(39)) return Then::give_up;
    if (engine_.still(wanted_.patience_ns) &&
        (!engine_.fenced_wait() || engine_.still(still_ns_most))) {
      engine_.still_.given_up = true;
      return Then::give_up;
    }
    reserves_taken_ = false;
    others_since_ = 0;
    // Progress without room, time and again, is no reason to spin.
    if (!changed_ || ++busy_rounds_ % 4 == 0) engine_.wait(lock_, poll_ns);
    // (A wait for the device that is over at once takes no time, and patience would not end.)
    const uint64_t now = engine_.clock_.now_ns();
    if (std::exchange(waited_ns_, now) != now) {
      timeless_rounds_ = 0;
    } else if (++timeless_rounds_ % timeless_most == 0) {
      const UnlockedEngine unlocked(lock_);
      engine_.clock_.wait(poll_ns);
    }
    return again;
  }

  // The rungs where nothing moves.
  Then last_reserves() FIRN_HELD {
    if (std::exchange(reserves_taken_, true)) return others_release();
    engine_.park_ready(true);
    segments_wait_ = engine_.release_segments();
    engine_.frames_.forget_limit();
    return again;
  }
  /// Other threads will release all that they hold at this moment, unless all of them wait as we
  /// do: then one that can goes on without room (in host memory), and releases. If none can, one
  /// gets its error.
  Then others_release() FIRN_HELD {  // may release the lock
    const int64_t holds = engine_.all_holds();
    if (holds <= mine_)  // one look more: what was released since evict() looked
      return std::exchange(looked_again_, true) ? Then::give_up : again;
    const uint64_t now = engine_.clock_.now_ns();
    if (!others_since_) others_since_ = now;
    const uint64_t since = now - others_since_;
    const bool all_wait = holds == engine_.waiting_holds_;
    if ((wanted_.gives_up || engine_.waiting_others_ == 0) && all_wait && since >= starved_ns) {
      engine_.still_.given_up = engine_.still_.starved = true;
      return Then::give_up;
    }
    if (since >= others_ns) return Then::give_up;
    looked_again_ = false;
    engine_.wait(lock_, poll_ns);
    return again;
  }

  EngineImpl& engine_;
  Lock& lock_;
  const RoomWanted wanted_;
  const uint32_t generation_;    // of the block, when the search began
  const int64_t mine_;           // holds of this thread
  OpenWait open_;
  Reservation reservation_;
  std::optional<uint64_t> begin_;        // of the wait
  bool short_before_ = false;
  // Of this round.
  uint64_t refusals_ = 0, unmapped_ = 0;
  bool regions_wait_ = false, changed_ = false;
  // Since anything moved.
  bool reserves_taken_ = false;
  uint64_t others_since_ = 0;            // when others were first waited for; 0: not yet
  // From round to round.
  bool looked_again_ = false;            // and no other thread held anything
  bool segments_wait_ = false;
  unsigned busy_rounds_ = 0;
  static constexpr unsigned timeless_most = 64;
  unsigned timeless_rounds_ = 0;         // in a row, in which the clock stood still
  uint64_t waited_ns_ = 0;               // when the last wait was over
};

Result<Reservation> EngineImpl::make_room(Lock& lock, const RoomWanted& wanted) {
  still_.given_up = still_.starved = false;
  if (wanted.granules > frames_.budget_granules()) return no_room(wanted.granules, wanted.block);
  return RoomSearch(*this, lock, wanted).run();
}

}  // namespace firn
