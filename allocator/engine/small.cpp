// Small blocks: places in segments of one frame each, which a stream's small blocks share. How a
// segment leaves and comes back: segments.cpp.
#include <fmt/format.h>

#include <memory>

#include "allocator/base/check.h"
#include "allocator/base/huge_pages.h"
#include "allocator/engine/hot.h"

namespace firn {

namespace {
// In a smaller pool one more segment costs little, and ready blocks are worth it.
constexpr uint64_t joined_from_bytes = 32u << 20;
}  // namespace

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
    if (!address || (spare_segments_.empty() && segment_count_ == segments_most)) {
      if (address) arena_->give(*address, 1);
      frames_.give(*frames);
      return make_error(Code::out_of_memory, 0, "the arena has no addresses left");
    }
    if (Result<void> mapped = mapper_.map(*address, *frames); !mapped) {
      frames_.give(*frames);
      arena_->give(*address, 1);
      return mapped.error();
    }
    uint32_t index;
    if (!spare_segments_.empty()) {
      index = spare_segments_.back();
      spare_segments_.pop_back();
    } else {
      std::atomic<uint32_t>* units = units_for(segment_count_);
      if (!units) {
        mapper_.unmap(*address, *frames);
        frames_.give(*frames);
        arena_->give(*address, 1);
        return make_error(Code::out_of_memory, 0,
                          "the machine has no host memory left for small blocks");
      }
      index = segment_count_++;
      auto* fresh = new Segment;
      fresh->units = units;
      segments_[index].store(fresh, std::memory_order_release);
    }
    Segment& segment = *segments_[index].load(std::memory_order_relaxed);
    segment.address = *address;
    segment.stream = static_cast<uint16_t>(stream);
    segment.frames = std::move(*frames);
    arena_->set(*address, 1, segment_mark | index);
    small_[stream]->add(*address, granule_bytes);
    if (watching_.load(std::memory_order_relaxed)) make_whole(index);
    count_segment(true, false, *address, granule_bytes, stream);
    return {};
  }
}

/// A segment's units, all zero; null: the system has no memory.
std::atomic<uint32_t>* EngineImpl::units_for(uint32_t segment) {
  std::atomic<std::atomic<uint32_t>*>& table = unit_tables_[segment / segments_per_table];
  if (!table.load(std::memory_order_relaxed))
    table.store(static_cast<std::atomic<uint32_t>*>(take_huge(unit_table_bytes)),
                std::memory_order_release);
  std::atomic<uint32_t>* units = table.load(std::memory_order_relaxed);
  if (!units) return nullptr;
  units += segment % segments_per_table * units_per_segment;
  std::uninitialized_value_construct_n(units, units_per_segment);
  return units;
}

/// Before a new segment comes: ready blocks of all sizes return their bytes to their segments, and
/// join what is free beside them, as in the native pool at each free. (Ready blocks are taken
/// without a lock; after this the next of their sizes are carved anew, once for each free. A pool
/// that has grown to what its program needs does it no more, unless its segments leave.)
std::optional<uint64_t> EngineImpl::take_joined(unsigned stream, size_t bytes) {
  ready(stream).take_all(table_, 0, size_class::small_count,
                         [this](Block& block) { retire_small(block); });
  return small_[stream]->take(bytes);
}

Result<void*> EngineImpl::allocate_small(Lock& lock, unsigned stream, size_t bytes,
                                         size_t requested, Told told) {
  unsigned size_class = size_class::of_small(bytes);
  size_t size = size_class::small_bytes(size_class);
  auto address = small_[stream]->take(size);
  if (!address && small_[stream]->total() >= joined_from_bytes) address = take_joined(stream, size);
  while (!address) {
    if (Result<void> added = add_segment(lock, stream); !added) return added.error();
    address = small_[stream]->take(size);
  }
  Block* block = table_.make();
  if (!block) {
    small_[stream]->release(*address, size, granule_bytes);
    return make_error(Code::out_of_memory, 0, "too many live blocks");
  }
  block->address = *address;
  block->pages = 0;
  block->bytes = size;
  block->stream = static_cast<uint16_t>(stream);
  block->size_class = static_cast<uint16_t>(size_class);
  Segment& segment = segment_of(*block);
  ++segment.live;
  segment.emptied = {};
  ++small_blocks_;
  block->word.become_small();
  transit(*block, Event::allocate, life_flags | word::many_uses);
  if (told == Told::always) block->word.set(word::told);
  segment.units[(*address - segment.address) / unit_bytes].store(block->index + 1,
                                                                 std::memory_order_release);
  return hand_out(*block, bytes, requested, thread_cell());
}

/// Gives back empty segments whose streams' work is over. True: others will follow.
bool EngineImpl::release_segments() {
  bool waits = false;
  for (uint32_t i = 0; i < segment_count_; ++i) {
    Segment& segment = *segments_[i].load(std::memory_order_relaxed);
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
    if (!small_[segment.stream]->remove(segment.address, granule_bytes)) continue;
    exported_.erase(segment.address);
    arena_->set(segment.address, 1, 0);
    mapper_.unmap(segment.address, segment.frames);
    frames_.give(segment.frames);
    arena_->give(segment.address, 1);
    count_segment(false, false, segment.address, granule_bytes, segment.stream);
    spare_segments_.push_back(i);
  }
  return waits;
}

}  // namespace firn
