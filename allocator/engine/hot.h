// The hot paths of allocating, touching, releasing and freeing: members of EngineImpl that are
// worth inlining in the files on those paths. No lock, no allocation, unless said.
#pragma once

#include "allocator/engine/engine_impl.h"
#include "firn/check.h"

namespace firn {

inline uint64_t EngineImpl::tick() const {
  return ticks_.load(std::memory_order_relaxed) + (ring_ ? ring_->pushed() : 0);
}

inline uint64_t EngineImpl::next_tick() {
  return ticks_.fetch_add(1, std::memory_order_relaxed) + (ring_ ? ring_->pushed() : 0);
}

inline bool EngineImpl::noting() const {
  return ring_ && watching_.load(std::memory_order_relaxed);
}

inline uint64_t EngineImpl::note(EventKind kind, const Block& block) {
  if (!noting()) return next_tick();
  return ring_->push(kind, block.index) + ticks_.load(std::memory_order_relaxed);
}

inline Block* EngineImpl::large_at(uint32_t number, uint64_t address) const {
  if (!(number & region_mark)) [[likely]]
    return &table_[number - 1];
  return placed_.region(number & ~region_mark)->at(address, table_);
}

/// See SmallBlocks::whole_at(); a use proves a small block as it proves a large one.
inline Block* EngineImpl::whole_at(uint32_t number, uint64_t address, Seen seen) const {
  return small_blocks_.whole_at(number, address, table_, seen == Seen::always);
}

inline ReadyBlocks& EngineImpl::ready(unsigned stream) const {
  return *ready_[stream].load(std::memory_order_acquire);
}

inline bool EngineImpl::proves(Seen seen, uint64_t w) {
  return seen == Seen::always || (w & word::outside);
}

inline int& EngineImpl::thread_holds() const {
  const unsigned cell = thread_cell();
  return cell < cells_own ? thread_holds_[cell].count : shared_cell_holds(options_.device);
}

/// The stream's index, added (under the lock) if need be; -1: there are too many.
inline int EngineImpl::index_of(CUstream stream) {
  stream = Streams::plain(stream);
  const int last = program_stream_.load(std::memory_order_acquire);
  if (last < 0 || streams_.key(static_cast<unsigned>(last)) != stream) [[unlikely]]
    return find_index(stream);
  streams_.used(static_cast<unsigned>(last));
  return last;
}

/// Runs `attempt`, an allocation of `bytes`, under the lock. If memory is short for it before
/// watching has begun, it is tried again once it has: blocks allocated before may leave then.
/// (Watching does not begin within a capture, nor for more than the budget.)
template <class Attempt>
Result<void*> EngineImpl::with_watching(size_t bytes, Attempt&& attempt) {
  Entered context(*this);
  for (;;) {
    if (Result<void> usable = can_use(context); !usable) return usable.error();
    Result<void*> result = static_cast<void*>(nullptr);
    bool again = false;
    {
      Lock lock(mutex_);
      const bool watched = watching_.load(std::memory_order_relaxed);
      result = attempt(lock);
      const bool lacking = !result && result.error().code == Code::out_of_memory;
      again = lacking && !watched && bytes <= frames_.budget_granules() * granule_bytes;
      if (again) watch_due_ = true;
    }
    reach_watch();
    if (!again) return result;
    Lock lock(mutex_);
    while (watch_begins_ != std::thread::id() && watch_begins_ != std::this_thread::get_id())
      wait(lock, poll_ns);  // another thread was quicker: nothing leaves before it is done
    if (watching_.load(std::memory_order_relaxed)) continue;
    return result;
  }
}

/// Takes the lock if the block's last use was on another stream and may not be over.
inline void EngineImpl::set_use(Block& block, Use use) {
  if (block.use.load(std::memory_order_acquire) != use.bits) change_use(block, use);
}

/// Takes the lock if the block's end, or its leaving, waited for the last hold.
inline void EngineImpl::drop_hold(Block& block) {
  const uint64_t w = block.word.drop_hold();
  FIRN_CHECK(word::holds(w) > 0, "block %llx released without a hold",
             (unsigned long long)block.address);
  if ((w & (word::freed | word::zero_copy)) && word::holds(w) == 1) [[unlikely]]
    last_hold_dropped(block, w);
}

}  // namespace firn
