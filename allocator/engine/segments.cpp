// Segments (blocks/small_blocks.h) that leave the device and come back. Once operators are watched,
// a block stands for each segment (Segment::whole) and goes the ways of every large one; a use of a
// small block is a use of it. A segment may leave when each of its small blocks may: it was seen in
// an operator, is not held, and its address was not given away.
//
// While it is leaving or away it is set aside: it gets no new blocks, which the program could use
// without reporting it, and freeing a block in it takes the lock (word::aside). It is taken back as
// it was when its bytes are on their way in; its stream's later work comes behind them.
#include <algorithm>
#include <utility>

#include "allocator/engine/hot.h"

namespace firn {

/// From here on all uses are reported, those of small blocks too.
void EngineImpl::begin_watching() {
  watching_ = true;
  for (uint32_t i = 0; i < small_blocks_.segments(); ++i) make_whole(i);
}

/// From here on uses of its blocks are seen. (Without memory for that it stays, as before.)
void EngineImpl::make_whole(uint32_t index) {
  Segment& segment = small_blocks_.segment(index);
  Block* whole = segment.frames.empty() ? nullptr : table_.make();
  if (!whole) return;
  whole->address = segment.address;
  whole->shape = {0, 1, 0};
  whole->pages = granule_pages;
  whole->bytes = whole->requested = granule_bytes;
  whole->stream = segment.stream;
  whole->size_class = size_class::count;
  whole->segment = index + 1;
  whole->next_use = whole->next_change = UINT64_MAX;
  make_spans(*whole, span_granules_);
  whole->spans.front().frames = std::exchange(segment.frames, {});
  whole->mapped = whole->device = whole->pages;
  enlist(*whole);
  whole->use.store(0, std::memory_order_relaxed);
  whole->age.store(next_tick(), std::memory_order_relaxed);
  transit(*whole, Event::allocate, life_flags | word::small | word::many_uses | word::zero_copy);
  whole->word.set(word::proven);
  SmallBlocks::each(segment, table_, [&](Block& small) FIRN_HELD {
    prove_told(small);
    return true;
  });
  segment.whole.store(whole, std::memory_order_release);
}

Result<Hold> EngineImpl::touch_small(uint32_t number, uint64_t address, CUstream stream,
                                     Access access, Seen seen) {
  Block* whole = whole_at(number, address, seen);
  if (!whole) return Hold{};
  const uint64_t blocked =
      word::unsettled | word::freed |
      (access == Access::write ? word::copies | word::recipes : 0);
  uint64_t w = whole->word.load();
  while (word::state(w) == State::resident && !(w & blocked)) {
    if (!whole->word.try_hold(w)) continue;
    whole->age.store(next_tick(), std::memory_order_relaxed);
    ++thread_holds();
    if (traced_) trace("touch", *whole, access == Access::write ? "write" : "read");
    return Hold{whole};
  }
  return touch_slow(*whole, address, stream, access, seen, For::program);
}

/// The block that moves in place of this one: its segment's, if its uses are seen as that one's.
/// Lock-free.
Block* EngineImpl::moved_with(Block* block) const {
  if (block->pages != 0) return block;
  Block* whole = segment_of(*block).whole.load(std::memory_order_acquire);
  return whole ? whole : block;
}

/// As the program would see it: a small block is where its segment is.
State EngineImpl::state_of(const Block& block) const {
  const State state = block.state();
  if (block.pages != 0 || state != State::resident) return state;
  const Block* whole = segment_of(block).whole.load(std::memory_order_acquire);
  return whole ? whole->state() : state;
}

/// Other streams still use a freed block: its segment is not unmapped before that is over.
void EngineImpl::use_with_segment(const Block& small) {
  Block* whole = segment_of(small).whole.load(std::memory_order_relaxed);
  if (!whole) return;
  for (const Use use : small.more_uses) uses_.add(*whole, use);
}

/// Sets the segment aside before it leaves. False: it cannot leave, and is as it was.
bool EngineImpl::put_aside(Block& whole) {
  Segment& segment = segment_of(whole);
  const SmallBlocks::Inside inside = SmallBlocks::look_inside(segment, table_);
  if (!inside.may_leave) return false;
  if (inside.ready) park_ready(true);
  if (segment.live == 0) {  // it is not worth a copy
    end_segment(whole);
    return false;
  }
  const bool was_aside = segment.aside;
  const bool all = small_blocks_.set_aside(segment, table_);
  if (was_aside) return all;
  if (!all) {
    take_back(whole);
    return false;
  }
  // Blocks that were freed in it may be in use by kernels: those end with its stream's work.
  uses_.add(whole, streams_.now(segment.stream));
  SmallBlocks::each(segment, table_, [&](const Block& small) FIRN_HELD {
    for (const uint16_t stream : small.recorded_streams) uses_.add(whole, streams_.now(stream));
    return true;
  });
  return true;
}

/// The segment is on the device, or its bytes are on their way in: makes it as it was before it was
/// set aside. Drops its copies: what is allocated in it may be written without a report. (Not where
/// it is used in host memory: from there it leaves as soon as it can.)
void EngineImpl::take_back(Block& whole) {
  const uint64_t w = whole.word.load();
  if (w & (word::freed | word::zero_copy)) return;
  Segment& segment = segment_of(whole);
  if (whole.arrival && !streams_.over(whole.arrival) &&
      !streams_.order(segment.stream, whole.arrival)) {
    const std::pair<Block*, uint32_t> known(&whole, whole.generation);
    if (std::find(aside_.begin(), aside_.end(), known) == aside_.end())
      aside_.push_back(known);  // until its bytes have come
    busy_.store(true, std::memory_order_relaxed);
    return;
  }
  const bool copied = std::any_of(whole.pieces.begin(), whole.pieces.end(),
                                  [](const Piece& piece) { return piece.host || piece.slot; });
  if (copied) {
    movement_.drop_copies(whole);
  } else {
    // (Copies that are gone, for want of host memory, left it read-only.)
    if (options_.guard) (void)movement_.open_guarded(whole);
    whole.word.clear(word::copies);
  }
  if (segment.aside) small_blocks_.open(segment, table_);
}

/// Those whose bytes were still on their way. (One that leaves again meanwhile is taken back when
/// it has come back.)
void EngineImpl::take_back_later() {
  for (const auto& [whole, life] : std::exchange(aside_, {}))
    if (whole->generation == life && whole->segment != 0 && segment_of(*whole).aside &&
        whole->state() == State::resident)
      take_back(*whole);
}

/// Returns a ready block's bytes to its segment.
void EngineImpl::retire_small(Block& block) {
  Segment& segment = segment_of(block);
  small_blocks_.retire(segment, block);
  transit(block, Event::reclaim);
  drop_descriptor(block);
  if (segment.aside && segment.live == 0)
    end_segment(*segment.whole.load(std::memory_order_relaxed));
}

/// The segment is empty: it ends as a block that is freed.
void EngineImpl::end_segment(Block& whole) {
  Segment& segment = segment_of(whole);
  const State state = whole.state();
  if (state == State::ready || state == State::draining || state == State::free) return;  // it ends
  if (!segment.aside && !small_blocks_.take_out(segment)) return;
  segment.aside = true;
  const uint64_t w = whole.word.set(word::freed);
  if (!(w & word::freed) && word::holds(w) == 0) finish_free(whole);
}

/// Ends it, with the descriptor of the block that stood for it.
void EngineImpl::drop_segment(Block& whole) {
  const uint32_t index = std::exchange(whole.segment, 0) - 1;
  exported_.erase(small_blocks_.segment(index).address);
  small_blocks_.drop(index);
}

/// How many are on the device and cannot leave. `look_inside`: also those with a block that may be
/// used without a report.
uint64_t EngineImpl::staying_segments(bool look_inside) const {
  uint64_t count = 0;
  for (uint32_t i = 0; i < small_blocks_.segments(); ++i) {
    const Segment& segment = small_blocks_.segment(i);
    const Block* whole = segment.whole.load(std::memory_order_relaxed);
    if (!whole) {
      count += !segment.frames.empty();
      continue;
    }
    if (!look_inside || whole->device == 0 ||
        word::holds(whole->word.load(std::memory_order_relaxed)) > 0)
      continue;
    count += !SmallBlocks::look_inside(segment, table_).may_leave;
  }
  return count;
}

}  // namespace firn
