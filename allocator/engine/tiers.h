// The engine's tiers, as lifetimes/carry_out.h wants them: device memory, host memory and the store.
// Members of EngineImpl in few words; nothing is decided here.
//
// Owns: nothing. Lock: the engine's.
#pragma once

#include <optional>
#include <vector>

#include "allocator/engine/engine_impl.h"
#include "allocator/lifetimes/carry_out.h"
#include "firn/thread_safety.h"

namespace firn {

class EngineTiers {
 public:
  using Handle = Block*;
  explicit EngineTiers(EngineImpl& engine) : e_(engine) {}
  static EngineLock& lock() FIRN_RETURNS(engine_lock) { return engine_lock; }
  static lifetimes::CarryOut<EngineTiers> carry_out(EngineImpl& engine) FIRN_HELD;

  uint32_t life(const Block* block) const FIRN_HELD { return block->generation; }
  uint64_t touched(const Block* block) const FIRN_HELD {
    return block->age.load(std::memory_order_relaxed);
  }
  uint64_t next_use(const Block* block) const FIRN_HELD { return block->next_use; }
  uint64_t size(const Block* block) const FIRN_HELD { return block->pages; }
  uint64_t mapped(const Block* block) const FIRN_HELD { return block->mapped; }
  uint64_t coming(const Block* block) const FIRN_HELD { return block->coming; }
  uint64_t clean(Block* block) const FIRN_HELD { return e_.clean_pages(*block); }

  bool may_leave(const Block* block) const FIRN_HELD {
    return AgeOrder::may_leave(*block, block->word.load());
  }
  bool unused(Block* block) const FIRN_HELD { return e_.uses_.over(*block); }
  void watch_uses(Block* block) FIRN_HELD { (void)e_.uses_.close(*block); }
  bool aside(Block* block) const FIRN_HELD { return e_.uses_.aside(*block); }
  std::vector<Block*> copied_out() const FIRN_HELD;
  bool is_copied_out(const Block* block) const FIRN_HELD {
    return block->state() == State::spilling;
  }
  uint64_t copied_tail(Block* block) const FIRN_HELD;

  uint64_t make_leave(Block* block, uint64_t pages) FIRN_HELD;
  bool make_clean(Block* block, uint64_t pages) FIRN_HELD {
    return e_.movement_.start_spill(*block, false, pages);
  }
  void stop_cleaning(Block* block) FIRN_HELD {
    if (block->state() == State::spilling) e_.movement_.keep(*block);
  }
  void finish_leaving() FIRN_HELD { e_.movement_.finish_spills(); }

  bool may_arrive(const Block* block) const FIRN_HELD { return e_.may_arrive(*block); }
  bool at_host(const Block* block) const FIRN_HELD { return block->at_host != nullptr; }
  uint64_t arrivable(const Block* block) const FIRN_HELD { return e_.prefetchable_pages(*block); }
  uint64_t soon() const FIRN_HELD { return e_.pages_soon(); }
  void reclaim_ready() FIRN_HELD {
    e_.park_ready(false);
    e_.reclaim_parked(e_.span_granules_, true);
  }
  bool fetch(Block* block) FIRN_HELD { return e_.prefetch_span(*block); }

  size_t pieces(const Block* block) const FIRN_HELD { return block->pieces.size(); }
  uint64_t piece_pages(const Block* block, size_t i) const FIRN_HELD {
    return (block->pieces[i].bytes + firn::page_bytes - 1) / firn::page_bytes;
  }
  bool stored(const Block* block, size_t i) const FIRN_HELD {
    return static_cast<bool>(block->pieces[i].slot);
  }
  bool unwritten(Block* block, size_t i) const FIRN_HELD {
    return HostCopies::is_unwritten(piece_ref(*block, static_cast<uint32_t>(i)));
  }
  bool only_stored(const Block* block, size_t i) const FIRN_HELD;
  bool drop_host_copy(uint64_t wanted_at, uint64_t window) FIRN_HELD {
    return e_.movement_.host_copies().drop_planned(wanted_at, window);
  }
  std::optional<lifetimes::PieceOf<Block*>> unwritten_longest() FIRN_HELD {
    return piece_of(e_.movement_.host_copies().next_by_arrival());
  }
  std::optional<lifetimes::PieceOf<Block*>> unwritten_last_used() FIRN_HELD {
    return piece_of(e_.movement_.host_copies().next_by_use());
  }
  bool host_wanted() const FIRN_HELD { return e_.movement_.staging_wanted() || e_.host_.closing(); }
  bool read_to_host(Block* block, size_t i) FIRN_HELD {
    return e_.movement_.start_read(*block, static_cast<uint32_t>(i));
  }

  uint64_t span_bytes() const FIRN_HELD { return e_.options_.span_bytes; }
  uint64_t host_bytes() const FIRN_HELD { return e_.host_.budget(); }
  uint64_t host_used() const FIRN_HELD { return e_.host_.used(); }
  uint64_t spare_bytes() const FIRN_HELD { return e_.spare_bytes(); }
  uint64_t bytes_in() const FIRN_HELD { return e_.movement_.arriving_bytes(); }
  uint64_t bytes_out() const FIRN_HELD { return e_.transfers_.bytes_out(); }
  uint64_t bytes_written() const FIRN_HELD { return e_.transfers_.writing_bytes(); }
  uint64_t bytes_read() const FIRN_HELD { return e_.transfers_.reading_bytes(); }
  uint64_t store_bound() const FIRN_HELD {
    return e_.transfers_.writing_bytes() +
           e_.movement_.host_copies().unwritten() * e_.options_.piece_bytes;
  }
  uint64_t page_bytes() const { return firn::page_bytes; }
  double bytes_s(lifetimes::Channel channel) const FIRN_HELD {
    return bandwidths().bytes_s(channel);
  }
  uint64_t now() const FIRN_HELD { return e_.learner_->history().now(); }
  double reading_part() const FIRN_HELD { return e_.reading_.part(); }
  bool has_store() const FIRN_HELD { return e_.store_ != nullptr; }

  // For comparisons (baseline.h): what is known and planned from, and figures of the machine.
  Learner& learner() FIRN_HELD { return *e_.learner_; }
  /// The period ahead, laid out now.
  Outlook& outlook() FIRN_HELD {
    e_.lay_out_period(e_.outlook_);
    return e_.outlook_;
  }
  uint64_t movable_pages() const FIRN_HELD { return e_.movable_capacity(); }
  uint64_t in_flight_most() const FIRN_HELD { return e_.in_flight_most(); }
  bool host_is_passage() const FIRN_HELD { return e_.host_is_passage(); }
  const lifetimes::Bandwidths& bandwidths() const FIRN_HELD { return e_.transfers_.bandwidths(); }
  Block* live_at(const void* pointer) const FIRN_HELD { return e_.live_at(pointer, false); }
  uint64_t pages_of(size_t bytes) const FIRN_HELD { return e_.pages_of(bytes); }
  bool threads_wait() const FIRN_HELD { return e_.waiting_ > 0; }
  bool stuck() const FIRN_HELD { return e_.movement_.stuck(); }
  /// Are the block's uses over, but for copies out of it?
  bool unused_but_copied(Block* block) const FIRN_HELD {
    return e_.uses_.over_but_on(*block, e_.transfers_.out());
  }
  /// All of the block leaves once it is valid elsewhere. False: it may not.
  bool begin_leaving(Block* block) FIRN_HELD { return e_.movement_.start_spill(*block, true); }
  /// Ready blocks give their pages, until there is room for so many of this block's.
  void reclaim_ready(const Block* block, uint64_t pages) FIRN_HELD {
    e_.park_ready(false);
    e_.reclaim_parked(e_.granules_for(*block, pages));
  }

 private:
  static std::optional<lifetimes::PieceOf<Block*>> piece_of(const std::optional<PieceRef>& ref)
      FIRN_HELD {
    if (!ref) return std::nullopt;
    return lifetimes::PieceOf<Block*>{ref->block, ref->piece};
  }

  EngineImpl& e_;
};

inline lifetimes::CarryOut<EngineTiers> EngineTiers::carry_out(EngineImpl& engine) {
  return {engine.plan_, EngineTiers(engine)};
}

}  // namespace firn
