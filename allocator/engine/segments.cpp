// Segments of small blocks that leave the device and come back. Once operators are watched, a block
// stands for each segment (Segment::whole) and goes the ways of every large one; a use of a small
// block is a use of it. A segment may leave when each of its small blocks may: it was seen in an
// operator, is not held, and its address was not given away.
//
// While it is leaving or away it is set aside: it gets no new blocks, which the program could use
// without reporting it, and freeing a block in it takes the lock (word::aside). It is taken back as
// it was when its bytes are on their way in; its stream's later work comes behind them.
#include <algorithm>
#include <utility>
#include <vector>

#include "allocator/base/check.h"
#include "allocator/engine/hot.h"

namespace firn {

namespace {
/// May a segment leave while this is one of its blocks?
bool may_move(uint64_t w) {
  return word::state(w) == State::resident && word::holds(w) == 0 && (w & word::proven) &&
         !(w & (word::pinned | word::freed));
}
}  // namespace

/// Calls `see` with the segment's blocks, live or ready, by address, until it returns false; then
/// returns false.
template <class See>
bool EngineImpl::each_small(const Segment& segment, See&& see) const {
  uint32_t left = segment.live;
  for (size_t unit = 0; unit < units_per_segment && left > 0;) {
    const uint32_t index = segment.units[unit].load(std::memory_order_acquire);
    if (index == 0) {
      ++unit;
      continue;
    }
    Block& block = table_[index - 1];
    unit += size_t{block.bytes} / unit_bytes;
    --left;
    if (!see(block)) return false;
  }
  return true;
}

/// From here on all uses are reported, those of small blocks too.
void EngineImpl::begin_watching() {
  watching_ = true;
  for (uint32_t i = 0; i < segment_count_; ++i) make_whole(i);
}

/// From here on uses of its blocks are seen. (Without memory for that it stays, as before.)
void EngineImpl::make_whole(uint32_t index) {
  Segment& segment = *segments_[index].load(std::memory_order_relaxed);
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
  each_small(segment, [&](Block& small) {
    prove_told(small);
    return true;
  });
  segment.whole.store(whole, std::memory_order_release);
}

Result<Hold> EngineImpl::touch_small(uint32_t entry, uint64_t address, CUstream stream,
                                     Access access, Seen seen) {
  Block* whole = whole_at(entry, address, seen);
  if (!whole) return Hold{};
  const uint64_t blocked =
      word::unsettled | word::freed | (access == Access::write ? word::copies : 0);
  uint64_t w = whole->word.load();
  while (word::state(w) == State::resident && !(w & blocked)) {
    if (!whole->word.try_hold(w)) continue;
    whole->age.store(next_tick(), std::memory_order_relaxed);
    ++thread_holds();
    if (traced_) trace("touch", *whole, access == Access::write ? "write" : "read");
    return Hold{whole};
  }
  return touch_slow(*whole, stream, access, seen, false);
}

/// The block that moves in place of this one: its segment's, if its uses are seen as that one's.
Block* EngineImpl::moved_with(Block* block) const {
  if (block->pages != 0) return block;
  Block* whole = segment_of(*block).whole.load(std::memory_order_relaxed);
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
  bool ready = false;
  const bool may = each_small(segment, [&](const Block& small) {
    const uint64_t w = small.word.load();
    if (word::state(w) != State::ready) return may_move(w);
    return ready = true;
  });
  if (!may) return false;
  if (ready) park_ready(true);
  if (segment.live == 0) {  // it is not worth a copy
    end_segment(whole);
    return false;
  }
  // (A block that another thread is freeing or taking just now is still ready: the next try, then.)
  const bool all = each_small(segment, [&](Block& small) {
    uint64_t w = small.word.load();
    do {
      if (!may_move(w)) return false;
    } while (!small.word.try_set_aside(w));
    return true;
  });
  if (segment.aside) return all;
  segment.aside = true;
  RangeMap& ranges = *small_[segment.stream];
  std::vector<std::pair<uint64_t, uint64_t>> gaps;
  for (auto at = ranges.free_ranges().lower_bound(segment.address);
       at != ranges.free_ranges().end() && at->first < segment.address + granule_bytes; ++at)
    gaps.emplace_back(*at);
  for (const auto& [begin, bytes] : gaps)
    FIRN_CHECK(ranges.remove(begin, bytes), "segment %llx", (unsigned long long)segment.address);
  if (!all) {
    take_back(whole);
    return false;
  }
  // Blocks that were freed in it may be in use by kernels: those end with its stream's work.
  uses_.add(whole, streams_.now(segment.stream));
  each_small(segment, [&](const Block& small) {
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
      !streams_.order(segment.stream, whole.arrival))
    return;  // until it has left and come back once more
  const bool copied = std::any_of(whole.pieces.begin(), whole.pieces.end(),
                                  [](const Piece& piece) { return piece.host || piece.slot; });
  if (copied)
    drop_copies(whole);
  else
    whole.word.clear(word::copies);
  if (!std::exchange(segment.aside, false)) return;
  RangeMap& ranges = *small_[segment.stream];
  uint64_t end = segment.address;
  each_small(segment, [&](Block& small) {
    small.word.clear(word::aside);
    if (small.address > end) ranges.add(end, small.address - end);
    end = small.address + small.bytes;
    return true;
  });
  if (end < segment.address + granule_bytes)
    ranges.add(end, segment.address + granule_bytes - end);
}

/// Returns a ready block's bytes to its segment.
void EngineImpl::retire_small(Block& block) {
  Segment& segment = segment_of(block);
  segment.units[(block.address - segment.address) / unit_bytes].store(0,
                                                                      std::memory_order_release);
  --segment.live;
  --small_blocks_;
  RangeMap& ranges = *small_[block.stream];
  ranges.release(block.address, block.bytes, granule_bytes);
  if (segment.aside)
    FIRN_CHECK(ranges.remove(block.address, block.bytes), "block %llx",
               (unsigned long long)block.address);
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
  if (!segment.aside && !small_[segment.stream]->remove(segment.address, granule_bytes)) return;
  segment.aside = true;
  const uint64_t w = whole.word.set(word::freed);
  if (!(w & word::freed) && word::holds(w) == 0) finish_free(whole);
}

/// Ends it, with the descriptor of the block that stood for it.
void EngineImpl::drop_segment(Block& whole) {
  const uint32_t index = std::exchange(whole.segment, 0) - 1;
  Segment& segment = *segments_[index].load(std::memory_order_relaxed);
  exported_.erase(segment.address);
  segment.whole.store(nullptr, std::memory_order_release);
  segment.aside = false;
  segment.emptied = {};
  spare_segments_.push_back(index);
}

/// How many are on the device and cannot leave. `look_inside`: also those with a block that may be
/// used without a report.
uint64_t EngineImpl::staying_segments(bool look_inside) const {
  uint64_t count = 0;
  for (uint32_t i = 0; i < segment_count_; ++i) {
    const Segment& segment = *segments_[i].load(std::memory_order_relaxed);
    const Block* whole = segment.whole.load(std::memory_order_relaxed);
    if (!whole) {
      count += !segment.frames.empty();
      continue;
    }
    if (!look_inside || whole->device == 0 ||
        word::holds(whole->word.load(std::memory_order_relaxed)) > 0)
      continue;
    count += !each_small(segment, [](const Block& small) {
      const uint64_t w = small.word.load(std::memory_order_relaxed);
      return word::state(w) == State::ready || may_move(w);
    });
  }
  return count;
}

}  // namespace firn
