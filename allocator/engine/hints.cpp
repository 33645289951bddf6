// Hints: what the program says it uses soon, or not for long.
#include <algorithm>

#include <fmt/format.h>

#include "allocator/engine/hot.h"

namespace firn {

Result<void> EngineImpl::prefetch(const void* pointer, size_t bytes, CUstream stream) {
  auto begin = reinterpret_cast<uint64_t>(pointer);
  Entered context(*this);
  if (Result<void> usable = can_use(context); !usable) return usable;
  Lock lock(mutex_);
  for (uint64_t at = begin; at < begin + std::max<size_t>(bytes, 1);) {
    Block* block = live_at(reinterpret_cast<void*>(at), false);
    if (!block)
      return make_error(Code::invalid_argument, 0,
                        fmt::format("cannot prefetch {:#x}: it is outside Firn's live blocks", at));
    block = moved_with(block);
    State state = block->state();
    if (state == State::spilling) movement_.keep(*block);
    state = block->state();
    if (state == State::hosted || state == State::spilled)
      prefetches_.emplace_back(piece_ref(*block, 0),
                               static_cast<unsigned>(std::max(see_stream(stream), 0)));
    if (state == State::resident)
      block->age.store(next_tick(), std::memory_order_relaxed);
    at = block->address + std::max<uint64_t>(block->mapped_bytes(), block->bytes);
  }
  run_prefetches();
  busy_.store(true, std::memory_order_relaxed);
  lock.unlock();
  clock_.notify();
  return {};
}

Result<void> EngineImpl::cold(const void* pointer, size_t bytes) {
  auto begin = reinterpret_cast<uint64_t>(pointer);
  Entered context(*this);
  if (Result<void> usable = can_use(context); !usable) return usable;
  Lock lock(mutex_);
  for (uint64_t at = begin; at < begin + std::max<size_t>(bytes, 1);) {
    Block* block = live_at(reinterpret_cast<void*>(at), false);
    if (!block)
      return make_error(Code::invalid_argument, 0,
                        fmt::format("cannot mark {:#x} as cold: it is outside Firn's live blocks",
                                    at));
    block = moved_with(block);
    if (block->pages != 0) {
      block->age.store(0, std::memory_order_relaxed);
      movement_.start_spill(*block, true);
    }
    at = block->address + std::max<uint64_t>(block->mapped_bytes(), block->bytes);
  }
  pump_locked();
  (void)carry_out_unmappings(lock);
  lock.unlock();
  clock_.notify();
  return {};
}

}  // namespace firn
