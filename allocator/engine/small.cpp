// Around blocks/small_blocks.h, which has the segments of small blocks: a new segment's frames are
// taken and mapped, a block's life begins in it, and an empty segment's memory is given back. How a
// segment leaves and comes back: segments.cpp.
#include <optional>
#include <utility>
#include <vector>

#include "allocator/engine/hot.h"

namespace firn {

Result<void> EngineImpl::add_segment(Lock& lock, unsigned stream) {
  for (int attempt = 0;; ++attempt) {
    // (It cannot go on without room: of threads that starve each other, one that can does.)
    Result<Reservation> room = make_room(lock, {.granules = 1, .gives_up = false});
    if (!room) return room.error();
    Result<std::vector<Frame>> frames = frames_.take(std::move(*room));
    if (!frames) {
      if (frames.error().detail == CUDA_ERROR_OUT_OF_MEMORY && attempt < refusals_most) continue;
      return short_device(1, nullptr, frames.error());
    }
    auto address = arena_->take(1);
    if (!address || small_blocks_.full()) {
      if (address) arena_->give(*address, 1);
      frames_.give(*frames);
      return make_error(Code::out_of_memory, 0, "the arena has no addresses left");
    }
    if (Result<void> mapped = mapper_.map(*address, *frames); !mapped) {
      frames_.give(*frames);
      arena_->give(*address, 1);
      return mapped.error();
    }
    const std::optional<uint32_t> number = small_blocks_.add(stream, *address);
    if (!number) {
      mapper_.unmap(*address, *frames);
      frames_.give(*frames);
      arena_->give(*address, 1);
      return make_error(Code::out_of_memory, 0,
                        "the machine has no host memory left for small blocks");
    }
    Segment& segment = small_blocks_.segment(*number);
    segment.frames = std::move(*frames);
    arena_->set(*address, 1, SmallBlocks::segment_mark | *number);
    small_blocks_.open(segment, table_);
    if (watching_.load(std::memory_order_relaxed)) make_whole(*number);
    count_segment(true, false, *address, granule_bytes, stream);
    return {};
  }
}

Result<void*> EngineImpl::allocate_small(Lock& lock, unsigned stream, size_t bytes,
                                         size_t requested, Told told) {
  unsigned size_class = size_class::of_small(bytes);
  size_t size = size_class::small_bytes(size_class);
  auto address = small_blocks_.take(stream, size);
  if (!address)
    address = small_blocks_.take_joined(stream, size, ready(stream), table_,
                                        [this](Block& block) FIRN_HELD { retire_small(block); });
  while (!address) {
    if (Result<void> added = add_segment(lock, stream); !added) return added.error();
    address = small_blocks_.take(stream, size);
  }
  Block* block = table_.make();
  if (!block) {
    small_blocks_.give(stream, *address, size);
    return make_error(Code::out_of_memory, 0, "too many live blocks");
  }
  block->address = *address;
  block->pages = 0;
  block->bytes = size;
  block->stream = static_cast<uint16_t>(stream);
  block->size_class = static_cast<uint16_t>(size_class);
  block->word.become_small();
  transit(*block, Event::allocate, life_flags | word::many_uses);
  if (told == Told::always) block->word.set(word::told);
  small_blocks_.enter(segment_of(*block), *block);
  return hand_out(*block, bytes, requested, thread_cell());
}

/// Gives back empty segments whose streams' work is over. True: others will follow.
bool EngineImpl::release_segments() {
  bool waits = false;
  for (uint32_t i = 0; i < small_blocks_.segments(); ++i) {
    Segment& segment = small_blocks_.segment(i);
    if (Block* whole = segment.whole.load(std::memory_order_relaxed); whole && segment.live == 0)
      end_segment(*whole);
    if (segment.frames.empty() || segment.live > 0) continue;
    if (!segment.emptied) segment.emptied = streams_.now(segment.stream);
    if (!streams_.over(segment.emptied)) {
      const bool closed = streams_.close(segment.emptied);
      if (!streams_.over(segment.emptied)) {
        waits |= closed;
        continue;
      }
    }
    segment.emptied = {};
    if (!small_blocks_.take_out(segment)) continue;
    exported_.erase(segment.address);
    arena_->set(segment.address, 1, 0);
    mapper_.unmap(segment.address, segment.frames);
    frames_.give(segment.frames);
    arena_->give(segment.address, 1);
    count_segment(false, false, segment.address, granule_bytes, segment.stream);
    small_blocks_.drop(i);
  }
  return waits;
}

}  // namespace firn
