// Hints: what the program says it uses soon, or not for long.
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "allocator/engine/hot.h"

namespace firn {

/// Calls `act` for the block that moves with each live one of the range, in order of addresses, as
/// far as they go. The address where there is none; nothing: there are blocks to the end.
template <class Act>
std::optional<uint64_t> EngineImpl::each_in(const void* pointer, size_t bytes, Act&& act) {
  const auto begin = reinterpret_cast<uint64_t>(pointer);
  for (uint64_t at = begin; at < begin + std::max<size_t>(bytes, 1);) {
    Block* block = live_at(reinterpret_cast<void*>(at), false);
    if (!block) return at;
    block = moved_with(block);
    act(*block);
    at = block->address + std::max<uint64_t>(block->mapped_bytes(), block->bytes);
  }
  return {};
}

Result<void> EngineImpl::prefetch(const void* pointer, size_t bytes, CUstream stream) {
  Entered context(*this);
  if (Result<void> usable = can_use(context); !usable) return usable;
  Lock lock(mutex_);
  const std::optional<uint64_t> outside = each_in(pointer, bytes, [&](Block& block) FIRN_HELD {
    if (block.state() == State::spilling) movement_.keep(block);
    const State state = block.state();
    if (state == State::hosted || state == State::spilled)
      prefetches_.emplace_back(piece_ref(block, 0),
                               static_cast<unsigned>(std::max(see_stream(stream), 0)));
    if (state == State::resident) block.age.store(next_tick(), std::memory_order_relaxed);
  });
  if (outside)
    return make_error(Code::invalid_argument, 0,
                      fmt::format("cannot prefetch {:#x}: it is outside Firn's live blocks",
                                  *outside));
  run_prefetches();
  busy_.store(true, std::memory_order_relaxed);
  lock.unlock();
  clock_.notify();
  return {};
}

Result<void> EngineImpl::cold(const void* pointer, size_t bytes) {
  Entered context(*this);
  if (Result<void> usable = can_use(context); !usable) return usable;
  Lock lock(mutex_);
  const std::optional<uint64_t> outside = each_in(pointer, bytes, [&](Block& block) FIRN_HELD {
    if (block.pages == 0) return;
    block.age.store(0, std::memory_order_relaxed);
    movement_.start_spill(block, true);
  });
  if (outside)
    return make_error(Code::invalid_argument, 0,
                      fmt::format("cannot mark {:#x} as cold: it is outside Firn's live blocks",
                                  *outside));
  pump_locked();
  (void)carry_out_unmappings(lock);
  lock.unlock();
  clock_.notify();
  return {};
}

}  // namespace firn
