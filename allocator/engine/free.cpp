// Freeing: to the stream's ready blocks, without a lock where nothing is left to do; else once
// holds, copies and other streams' uses are over. And the end of a block's descriptor.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "allocator/engine/hot.h"
#include "allocator/record/recorder.h"
#include "firn/canary.h"
#include "firn/check.h"

namespace firn {

void EngineImpl::count_free(Block& block, unsigned cell) {
  if (block.word.load(std::memory_order_relaxed) & word::segment) [[unlikely]]
    return uncount_segment(block);
  hot_.freed(cell, block.pages != 0, block.bytes, block.requested);
  if (block.pages != 0 && noting()) (void)note(EventKind::free, block);
  if (options_.recorder) options_.recorder->freed(block.address);
  if (traced_) trace("free", block);
}

Result<void> EngineImpl::free(void* pointer) {
  if (!pointer) return {};
  Block* block = live_at(pointer, true);
  if (!block)
    return make_error(Code::invalid_argument, 0,
                      fmt::format("cannot free {}: it is not the start of a live block", pointer));
  uint64_t w = block->word.load();
  Use last{block->use.load(std::memory_order_relaxed)};
  if (!last || last.stream() == block->stream) {
    constexpr uint64_t slow = word::pinned | word::copies | word::unsettled | word::freed |
                              word::recorded | word::many_uses | word::zero_copy | word::segment |
                              word::aside | word::recipes;
    while (word::state(w) == State::resident && !(w & slow) && word::holds(w) == 0) {
      if (!block->word.try_free(w)) continue;
      const unsigned cell = thread_cell();
      count_free(*block, cell);
      make_ready(*block, cell);
      return {};
    }
  }
  return free_slow(*block);
}

/// Puts a block in State::ready where its stream finds it again: as route_freed() does for a block
/// without flags. Without the lock.
void EngineImpl::make_ready(Block& block, unsigned cell) {
  if (block.pages != 0) ++block.generation;  // (No I/O names a small one.)
  block.use.store(streams_.now(block.stream).bits, std::memory_order_relaxed);
  if (block.place_bytes != 0) {
    ready(block.stream).placed.push(block);
  } else if (block.size_class < size_class::count) {
    ready(block.stream).push(cell, block);
  } else {
    Lock lock(mutex_);
    parked_.push_back(&block);
  }
}

Result<void> EngineImpl::free_slow(Block& block) {
  Entered context(*this);
  // In a callback of the driver's, the driver may not be called, and the holder of the lock may
  // wait for the callback's end.
  const bool in_callback = context.result() == CUDA_ERROR_NOT_PERMITTED;
  Lock lock(mutex_, std::defer_lock);
  if (!in_callback) lock.lock();
  uint64_t w = block.word.load();
  for (;;) {
    State state = word::state(w);
    if ((w & word::freed) || state == State::free || state == State::ready ||
        state == State::draining)
      return make_error(Code::invalid_argument, 0,
                        fmt::format("block {:#x} has already been freed", block.address));
    if (block.word.try_mark_freed(w)) break;
  }
  count_free(block, thread_cell());
  if (word::holds(w) > 0) return {};  // the last holder goes on
  if (in_callback)
    settle_later(block);
  else
    finish_free(block);
  return {};
}

/// Leaves the rest of the block's end to the next pump: the driver may not be called here.
void EngineImpl::settle_later(Block& block) {
  {
    std::lock_guard guard(freed_mutex_);
    freed_.push_back(&block);
  }
  busy_.store(true, std::memory_order_relaxed);
  clock_.notify();
}

void EngineImpl::settle_freed() {
  std::vector<Block*> freed;
  {
    std::lock_guard guard(freed_mutex_);
    freed.swap(freed_);
  }
  // (One that was held meanwhile has ended with its last hold, or will: it may have another life.)
  for (Block* block : freed)
    if (const uint64_t w = block->word.load(); (w & word::freed) && word::holds(w) == 0)
      finish_free(*block);
  while (!unkept_.empty())  // the end of one may leave its own inputs without readers
    for (Block* block : std::exchange(unkept_, {}))
      if (block->kept && word::holds(block->word.load()) == 0) finish_free(*block);
}

/// The block's recipe ends, if it has one: the block ends, or is on the device. Inputs that were
/// freed and kept end with the next pump: there may be a long row of them.
void EngineImpl::end_recipe(Block& block) {
  if (block.dropping) movement_.keep(block);
  block.by_recipe = false;
  release_kept(recipes_.remove(block));
}

/// Those that were freed, and are kept for a recipe, may end.
void EngineImpl::release_kept(std::span<Block* const> inputs) {
  for (Block* input : inputs) {
    if (!input->kept) continue;
    unkept_.push_back(input);
    busy_.store(true, std::memory_order_relaxed);
  }
}

/// From here on inputs that are freed are kept only while the block is away.
void EngineImpl::lets_inputs_go(Recipe& recipe) {
  if (!std::exchange(recipe.keeps_inputs, false)) return;
  release_kept(recipe.inputs);
}

/// Ends the recipes that read the block, but those of blocks that are away. `freed`: and but those
/// that keep their inputs.
void EngineImpl::end_readers(const Block& block, bool freed) {
  const auto readers = recipes_.readers(block);
  for (Block* reader : std::vector<Block*>(readers.begin(), readers.end()))
    if (!Recipes::away(*reader) && !(freed && recipes_.of(*reader)->keeps_inputs))
      end_recipe(*reader);
}

/// Of a block that is about to end: recipes that read it end, but those of blocks that are away, or
/// that keep it. True: there are such, and the block stays as it is, with its own recipe. Else that
/// ends, too.
bool EngineImpl::keep_for_readers(Block& block) {
  end_readers(block, true);
  block.kept = !recipes_.readers(block).empty();
  if (!block.kept) end_recipe(block);
  return block.kept;
}

/// Under the lock, with word::freed set and no hold on the block.
void EngineImpl::finish_free(Block& block) {
  if (health_.without_memory()) return;  // its copies may have no owner, or another one
  uint64_t w = block.word.load();
  if ((w & word::recipes) && !FIRN_CANARY(42) && keep_for_readers(block)) return;
  w = block.word.load();
  State state = word::state(w);
  block.pin_reason = nullptr;
  block.pin_count = 0;
  const bool exported = std::exchange(block.exported, false);
  if (exported && block.pages != 0) exported_.erase(export_key(block));
  // The copy-in must not overwrite what the stream's next owner writes. (A segment has no next
  // owner: its memory is taken back once the copy is over.)
  bool arriving = false;  // and its stream cannot be made to wait for that
  if ((w & word::unsettled) && block.arrival) {
    arriving = !streams_.order(block.stream, block.arrival) && block.segment == 0;
    uses_.add(block, block.arrival);
  }
  if (w & word::copies) movement_.drop_copies(block);
  if (state == State::spilling) {
    movement_.keep(block);
    state = block.state();
  }
  if (state == State::lost) {
    transit(block, Event::release, life_flags);
    drop_descriptor(block);
    return;
  }
  if (state != State::resident) {
    ++block.generation;  // completions of requests in flight are ignored
    transit(block, Event::release, life_flags);
    movement_.forget(block);
    draining_.push_back(&block);
    finish_drain(block);
    return;
  }
  // Resident. Its uses on other streams must be over before its frames are unmapped; those of
  // recorded streams also before it is handed out again.
  Use last{block.use.load(std::memory_order_relaxed)};
  if (last && last.stream() != block.stream) uses_.add(block, last);
  bool recorded = w & word::recorded;
  for (const Use read : std::exchange(block.remake_reads, {})) {
    if (read.stream() == block.stream || streams_.over(read)) continue;
    uses_.add(block, read);
    recorded = true;
  }
  transit(block, Event::release, life_flags);
  ++block.generation;
  // Behind all streams, its own too. (A segment's fence is of a block in it, and older.)
  const Use* fence = block.segment == 0 ? fence_of(block) : nullptr;
  block.use.store((fence ? *fence : streams_.now(block.stream)).bits, std::memory_order_relaxed);
  if (recorded) {
    for (uint16_t stream : block.recorded_streams) uses_.add(block, streams_.now(stream));
    block.recorded_streams.clear();
  }
  if (recorded || arriving) {
    block.exported = exported;  // until it is wiped
    (void)uses_.close(block);
    hot_.waits(block.pages != 0, block.bytes);
    deferred_.push_back(&block);
    deferred_count_.store(static_cast<uint32_t>(deferred_.size()), std::memory_order_relaxed);
    busy_.store(true, std::memory_order_relaxed);
    if (block.pages == 0) use_with_segment(block);
  } else {
    route_freed(block);
  }
}

/// Where a block without an allocation is found again: in its place's region, in its stream's
/// cache, or, where no allocation may have it as it is, among those whose memory is taken back
/// first. A small block's bytes are its segment's again where that is leaving or away. (A block
/// without any flag takes make_ready()'s way, which needs no lock.)
void EngineImpl::route_freed(Block& block) {
  const bool as_it_is = block.size_class < size_class::count && !movement_.closed(block) &&
                        !(block.word.load(std::memory_order_relaxed) & word::zero_copy);
  if (block.pages == 0 && segment_of(block).aside)
    retire_small(block);
  else if (block.place_bytes != 0)
    ready(block.stream).placed.push(block);
  else if (as_it_is)
    ready(block.stream).push(cells, block);
  else
    parked_.push_back(&block);
}

/// Makes a block that was freed while other streams used it available as soon as they are done, as
/// the native allocator does, and not only in the service thread's next round.
void EngineImpl::look_at_deferred() {
  Entered context(*this);
  Lock lock(mutex_, std::defer_lock);
  if (!lock.try_lock() || health_.dead() || context.result() != CUDA_SUCCESS) return;
  (void)streams_.poll();
  settle_deferred();
}

void EngineImpl::settle_deferred() {
  size_t left = 0;  // (In one pass: a program that frees without waiting has thousands.)
  for (Block* deferred : deferred_) {
    Block& block = *deferred;
    const auto used = [&]() FIRN_HELD {
      if (uses_.over(block)) return false;
      (void)uses_.close(block);
      deferred_[left++] = deferred;
      return true;
    };
    if (used()) continue;
    if (std::exchange(block.exported, false)) {
      wipe(block);
      if (used()) continue;
    }
    hot_.waited(block.pages != 0, block.bytes);
    tell({MemoryEvent::Kind::free_completed, reinterpret_cast<void*>(block.address),
          block.mapped_bytes(), streams_.handle(block.stream)});
    route_freed(block);
  }
  deferred_.resize(left);
  deferred_count_.store(static_cast<uint32_t>(left), std::memory_order_relaxed);
}

/// Is there memory whose free would have waited with the native allocator?
bool EngineImpl::fenced_wait() const {
  const auto waits = [this](const Block* block) FIRN_HELD {
    const Use* fence = fence_of(*block);
    return fence && !streams_.over(*fence);
  };
  return fence_ && std::any_of(deferred_.begin(), deferred_.end(), waits);
}

/// The use that free_behind() left; null: there is none, or it is over.
const Use* EngineImpl::fence_of(const Block& block) const {
  if (!fence_) return nullptr;
  for (const Use& use : block.more_uses)
    if (use.stream() == fence_.stream()) return &use;
  return nullptr;
}

Result<void> EngineImpl::free_behind(void* pointer, CUstream fence, uint64_t given) {
  if (!pointer) return {};
  Block* block = live_at(pointer, true);
  if (!block)
    return make_error(Code::invalid_argument, 0,
                      fmt::format("cannot free {}: it is not the start of a live block", pointer));
  Entered context(*this);
  int index = -1;
  {
    Lock lock(mutex_);
    index = see_stream(fence);
    if (index >= 0) {
      // One event for all frees in between: behind long work there may be thousands of them.
      if (!fence_ || given > fence_given_) {
        fence_ = streams_.now(static_cast<unsigned>(index));
        fence_given_ = given;
        (void)streams_.close(fence_);
      }
      uses_.add(*block, fence_);
      block->word.set(word::recorded);
    }
  }
  if (index < 0) wait_for_stream(fence);
  return free(pointer);
}

Result<void> EngineImpl::record_stream(const void* pointer, CUstream stream, CUcontext context) {
  Block* block = live_at(pointer, false);
  if (!block)
    return make_error(Code::invalid_argument, 0,
                      fmt::format("record_stream: {} is outside Firn's live blocks", pointer));
  Lock lock(mutex_);
  if (context == options_.context) context = nullptr;
  int index = see_stream(stream, context);
  if (index < 0)
    return make_error(Code::invalid_argument, 0,
                      fmt::format("the program uses more than {} streams, the most that Firn "
                                  "tracks", Streams::capacity));
  if (static_cast<unsigned>(index) == block->stream) return {};
  auto& recorded = block->recorded_streams;
  if (std::find(recorded.begin(), recorded.end(), index) == recorded.end())
    recorded.push_back(static_cast<uint16_t>(index));
  block->word.set(word::recorded);
  placed_.bar(*block);
  return {};
}

/// A block in State::free: its addresses and descriptor can serve another.
void EngineImpl::drop_descriptor(Block& block) {
  FIRN_CHECK(block.state() == State::free, "block %llx", (unsigned long long)block.address);
  if (block.coming > 0) mapper_.drop_claims(block);
  if (block.coming > 0 || block.going > 0) {  // the caller of the driver does the rest
    block.dropped = true;
    return;
  }
  // The descriptor's number will be another block's. (No new decision here: the last one may be
  // being carried out.)
  if (learner_) (void)take_events();
  if (block.place_bytes != 0) {
    block.place_bytes = 0;
  } else if (block.pages != 0) {
    live_[block.live_at] = live_.back();
    live_[block.live_at]->live_at = block.live_at;
    live_.pop_back();
    arena_->set(block.base(), block.granules(), 0);
    arena_->give(block.base(), block.granules());
    count_segment(false, block.segment == 0, block.address, block.mapped_bytes(), block.stream);
    if (block.segment != 0) drop_segment(block);
  }
  ++block.generation;
  block.pieces.clear();
  block.spans.clear();
  block.more_uses.clear();
  block.recorded_streams.clear();
  block.remake_reads.clear();
  block.arrival = {};
  block.failing = Block::Failing::nothing;
  block.unreadable = false;
  block.use.store(0, std::memory_order_relaxed);
  table_.recycle(&block);
}

}  // namespace firn
