// Allocation: the stream's ready blocks first, without a lock; then frames for a large block, a
// room in one of the stream's segments for a small one (small.cpp).
#include <algorithm>

#include <fmt/format.h>

#include "allocator/engine/hot.h"
#include "allocator/record/recorder.h"
#include "firn/check.h"

namespace firn {

int EngineImpl::see_stream(CUstream stream, CUcontext context) {
  int index = streams_.see(stream, context);
  if (index < 0) return index;
  streams_.used(static_cast<unsigned>(index));
  if (!ready_[index].load(std::memory_order_relaxed)) {
    ready_owner_.push_back(std::make_unique<ReadyBlocks>());
    small_blocks_.add_stream(static_cast<unsigned>(index));
    ready_[index].store(ready_owner_.back().get(), std::memory_order_release);
  }
  return index;
}

void* EngineImpl::hand_out(Block& block, size_t bytes, size_t requested, unsigned cell) {
  block.requested = requested;
  if (block.pages != 0) {
    // It may have served another size of its class. (Small ones have their segment's age.)
    block.bytes = (bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
  }
  hot_.allocated(cell, block.pages != 0, block.bytes, requested);
  if (block.pages != 0) {
    block.asked.store(static_cast<uint32_t>(block.bytes / unit_bytes), std::memory_order_relaxed);
    // Before watching begins, the order in which memory grew will do.
    block.age.store(watching_.load(std::memory_order_relaxed) ? note(EventKind::allocate, block)
                                                              : tick(),
                    std::memory_order_relaxed);
  }
  if (options_.recorder) options_.recorder->allocated(block.address, requested);
  if (traced_) trace("alloc", block);
  return reinterpret_cast<void*>(block.address);
}

Result<void*> EngineImpl::allocate(size_t bytes, CUstream stream, size_t requested, Told told) {
  if (bytes == 0) return static_cast<void*>(nullptr);
  if (requested == 0) requested = bytes;
  bool small = bytes <= size_class::small_most;
  if (bytes > (uint64_t{1} << 46))
    return make_error(Code::out_of_memory, 0,
                      fmt::format("an allocation of {} bytes exceeds any device", bytes));
  unsigned size_class = small ? size_class::of_small(bytes)
                              : size_class::of_pages(pages_of(bytes));
  stream = Streams::plain(stream);
  int index = streams_.find(stream);
  // A stream may be known a moment before its ready blocks are.
  ReadyBlocks* ready = index >= 0 ? ready_[index].load(std::memory_order_acquire) : nullptr;
  if (deferred_count_.load(std::memory_order_relaxed) != 0) look_at_deferred();
  if (ready && size_class < size_class::count &&
      (small || !ready->placing.load(std::memory_order_relaxed))) {
    const unsigned cell = thread_cell();
    if (Block* block = ready->pop(cell, table_, size_class)) {
      transit_own(*block, Event::reuse,
                  word::Flags(0).and_if(told == Told::always, word::told));
      return hand_out(*block, bytes, requested, cell);
    }
  }
  bool in_host = false;
  const auto attempt = [&](Lock& lock) FIRN_HELD -> Result<void*> {
    if (told == Told::always && (!watching() || options_.watch_fraction <= 0)) told_early_ = true;
    const int index = see_stream(stream);
    if (index < 0)
      return make_error(Code::invalid_argument, 0,
                        fmt::format("the program uses more than {} streams, the most that Firn "
                                    "tracks", Streams::capacity));
    Block* found = small ? nullptr : placed_block(lock, index, bytes);
    if (!found) found = ready_block(index, size_class);
    Result<Block*> block = static_cast<Block*>(nullptr);
    if (found) {
      block = found;
    } else if (small) {
      Result<void*> made = allocate_small(lock, index, bytes, requested, told);
      if (made || !in_host) return made;
      block = made.error();
    } else {
      block = large_block(lock, index, bytes);
    }
    if (!block && in_host && operators_in_way(block.error(), bytes))
      block = make_host_block(lock, index, bytes, block.error());
    if (!block) return block.error();
    if (told == Told::always) (*block)->word.set(word::told);
    return hand_out(**block, bytes, requested, thread_cell());
  };
  Result<void*> result = with_watching(bytes, attempt);
  if (!result && told == Told::always && thread_holds() > 0 &&
      may_be_in_host(result.error(), bytes)) {
    in_host = true;
    result = with_watching(bytes, attempt);
  }
  return result;
}

void EngineImpl::count_refusal() {
  Lock lock(mutex_);
  ++counted_.oom_count;
}

/// Should a tensor that does not fit beside what its operator holds be made in host memory? Checks
/// that the device supports it, which takes a while the first time.
bool EngineImpl::may_be_in_host(const Error& error, size_t bytes) {
  {
    Lock lock(mutex_);
    if (!operators_in_way(error, bytes)) return false;
  }
  Entered context(*this);
  return static_cast<bool>(frames_.host_granted());
}

/// Asks it now if it was not asked yet, without the lock. True: the lock was given up meanwhile.
bool EngineImpl::ask_for_host(Lock& lock) {
  if (frames_.host_asked()) return false;
  const UnlockedEngine unlocked(lock);
  (void)frames_.host_granted();
  return true;
}

/// A ready block of the class, whichever thread freed it; resident.
Block* EngineImpl::ready_block(unsigned stream, unsigned size_class) {
  Block* block = size_class < size_class::count ? ready(stream).pop_any(table_, size_class)
                                                : nullptr;
  if (block) transit_own(*block, Event::reuse);
  return block;
}

Block* EngineImpl::take_parked(unsigned stream, uint32_t pages) {
  for (size_t i = parked_.size(); i-- > 0;) {
    Block* block = parked_[i];
    if (block->stream != stream || block->pages != pages || block->segment != 0) continue;
    if (block->word.load(std::memory_order_relaxed) & word::zero_copy) continue;
    parked_.erase(parked_.begin() + static_cast<ptrdiff_t>(i));
    transit_own(*block, Event::reuse);
    return block;
  }
  return nullptr;
}

/// A large block of the stream, resident and not handed out yet.
Result<Block*> EngineImpl::large_block(Lock& lock, unsigned stream, size_t bytes) {
  const uint32_t pages = pages_of(bytes);
  const unsigned size_class = size_class::of_pages(pages);
  if (Block* block = take_parked(stream, pages)) return block;
  for (int attempt = 0;; ++attempt) {
    Result<Reservation> room = make_room(lock, {frames_.granules_for(shape_of(pages))});
    if (!room && room.error().code == Code::out_of_memory && attempt < refusals_most &&
        frames_.granules_for(shape_of(pages)) == 0)
      continue;  // parts of shared frames came free meanwhile
    if (!room && room.error().code == Code::out_of_memory &&
        places_in_way(frames_.granules_for(shape_of(pages)))) {
      stop_placing();
      return make_host_block(lock, stream, bytes, room.error());
    }
    if (!room && still_.given_up) {
      const bool in_vain = still_.starved || still_.futile;
      Result<Block*> in_host = make_host_block(lock, stream, bytes, room.error());
      if (in_host) return in_host;
      if (in_vain) return room.error();
      room = make_room(lock, {.granules = frames_.granules_for(shape_of(pages)),
                              .patience_ns = still_ns_most});
    }
    if (!room) return room.error();
    const Result<void> provided = mapper_.provide(lock, shape_of(pages), *room);
    // While waiting, a block of this very size may have come free on the stream.
    if (Block* block = ready_block(stream, size_class)) return block;
    // (While waiting, gaps in shared frames have come and gone.)
    const Shape shape = shape_of(pages);
    if (frames_.granules_for(shape) > room->granules()) continue;
    Result<Mapping> begun = provided ? begin_block(stream, bytes, std::move(*room), shape)
                                     : Result<Mapping>(provided.error());
    Result<Block*> made = begun ? finish_block(lock, *begun) : Result<Block*>(begun.error());
    if (!made) {
      if (made.error().detail == CUDA_ERROR_OUT_OF_MEMORY && attempt < refusals_most) continue;
      return short_device(frames_.granules_for(shape), nullptr, made.error());
    }
    uint64_t used = frames_.held_granules() - frames_.free_granules();
    if (static_cast<double>(used) >
        options_.watch_fraction * static_cast<double>(frames_.budget_granules()))
      watch_due_ = true;
    return *made;
  }
}

/// The shape of a new block as things are now.
Shape EngineImpl::shape_of(uint32_t pages) const {
  if (pages % granule_pages == 0) return {0, pages / granule_pages, 0};
  return frames_.shared().shape(pages);
}

/// A new large block of that shape, for which `room` is enough; finish_block() maps it.
Result<Mapping> EngineImpl::begin_block(unsigned stream, size_t bytes, Reservation room,
                                        const Shape& shape) {
  Result<std::vector<Frame>> taken = frames_.take(std::move(room), shape, span_granules_);
  if (!taken) return taken.error();
  return begin_block(stream, bytes, std::move(*taken), shape);
}

/// Do only the holds of operators now running, the caller's included, keep a block from the device?
/// (If nothing can leave for want of a destination, host memory is short as well. There may be
/// thousands of small blocks, each in a frame of its own: their total counts for them.)
bool EngineImpl::operators_in_way(const Error& error, size_t bytes) const {
  const uint64_t there =
      bytes <= size_class::small_most ? frames_.host_granules() * granule_bytes : 0;
  if (error.code != Code::out_of_memory || movement_.stuck() ||
      spilling_stopped_ || health_.dead() ||
      there + bytes > host_.budget())
    return false;
  const uint64_t most = frames_.budget_granules() * granule_bytes;
  return pages_of(bytes) * page_bytes + staying_bytes(false) <= most;
}

/// A block in host memory, beyond the budget, which kernels reach over the link: made when the
/// memory that would leave is in planned places, or held by the operator that asks. (Host memory
/// has no segments: a small block is as large as the smallest large one there.)
Result<Block*> EngineImpl::make_host_block(Lock& lock, unsigned stream, size_t bytes,
                                           const Error& no_room) {
  (void)ask_for_host(lock);
  const size_t room = std::max(bytes, size_class::small_most + 1);
  const Shape shape = shape_of(pages_of(room));
  std::vector<Frame> frames;
  for (uint32_t left = shape.granules(); left > 0;) {
    const uint32_t each = shape.shared() ? left : std::min(left, span_granules_);
    Result<std::vector<Frame>> one = frames_.take_host(each);
    if (!one) {
      frames_.give(frames);
      return no_room;
    }
    frames.push_back(one->front());
    left -= each;
  }
  Result<Mapping> begun = begin_block(stream, room, std::move(frames), shape);
  Result<Block*> block = begun ? finish_block(lock, *begun) : Result<Block*>(begun.error());
  if (!block) return no_room;
  (*block)->word.set(word::zero_copy);
  count_zero_copy(bytes, no_room);
  return block;
}

/// With these frames, in address order. No other thread can reach the block before it is mapped.
Result<Mapping> EngineImpl::begin_block(unsigned stream, size_t bytes, std::vector<Frame> frames,
                                        const Shape& shape) {
  const uint32_t granules = shape.granules();
  auto address = arena_->take(granules);
  Block* block = address ? table_.make() : nullptr;
  if (!block) {
    if (address) arena_->give(*address, granules);
    frames_.give(frames);
    return make_error(Code::out_of_memory, 0, "the arena has no addresses left");
  }
  block->address = *address + shape.offset();
  block->shape = shape;
  block->pages = shape.pages();
  block->bytes = (bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
  block->stream = static_cast<uint16_t>(stream);
  block->size_class = static_cast<uint16_t>(size_class::of_pages(block->pages));
  make_spans(*block, span_granules_);
  return Mapper::claim(*block, std::move(frames), block->pages);
}

/// Maps it, without the lock meanwhile; resident and not handed out yet.
Result<Block*> EngineImpl::finish_block(Lock& lock, Mapping& mapping) {
  Block* block = mapping.block;
  if (Result<void> mapped = mapper_.map_apart(lock, mapping); !mapped) {
    forget_block(*block);
    return mapped.error();
  }
  Mapper::install(mapping);
  enlist(*block);
  block->use.store(0, std::memory_order_relaxed);
  (void)next_tick();  // time also goes on before watching begins
  arena_->set(block->base(), block->granules(), block->index + 1);
  count_segment(true, true, block->address, block->mapped_bytes(), block->stream);
  transit(*block, Event::allocate, life_flags | word::small | word::many_uses | word::zero_copy);
  return block;
}

/// Adds it to the live blocks. Makes room to park them all now: a free must not lack it.
void EngineImpl::enlist(Block& block) {
  block.live_at = static_cast<uint32_t>(live_.size());
  live_.push_back(&block);
  parked_.reserve(live_.capacity());
}

/// A block that was begun and not mapped.
void EngineImpl::forget_block(Block& block) {
  block.spans.clear();
  arena_->give(block.base(), block.granules());
  table_.recycle(&block);
}

}  // namespace firn
