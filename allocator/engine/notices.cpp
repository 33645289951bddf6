// The engine's part around ThrashNotices, which has the words for a program that waits most of its
// time: figures for it, a walk over the blocks, and the lines as they are said.
#include <algorithm>

#include "allocator/engine/hot.h"

namespace firn {

void EngineImpl::waited(const WaitedBy& who) {
  Lock lock(mutex_);
  thrash_notices_.waited(who);
}

void EngineImpl::made_by(const void* pointer, std::string_view maker) {
  Lock lock(mutex_);
  if (const Block* block = live_at(pointer, true)) thrash_notices_.made_by(*block, maker);
}

/// Whether the observer is to report who waits, if that changes.
std::optional<bool> EngineImpl::look_for_thrash(const Stalled& stalled) {
  const Moved moved = movement_.moved();
  const ThrashNotices::Notice found = thrash_notices_.look(
      stalled.begin_ns, stalled.end_ns, stalled.wait,
      {.totals = {moved.faulted_bytes + moved.prefetched_bytes, moved.faults,
                  static_cast<uint64_t>(std::max<int64_t>(hot_.allocated_bytes().current(), 0))},
       .tick = tick(),
       .budget_bytes = frames_.budget_granules() * granule_bytes,
       .observed = observer_.load(std::memory_order_relaxed) != nullptr,
       .working_bytes = [this](uint64_t since) FIRN_HELD { return working_bytes(since); },
       .device_bytes = [this]() -> std::optional<uint64_t> {
         size_t free_bytes = 0, total_bytes = 0;
         if (driver_.mem_get_info(&free_bytes, &total_bytes) != CUDA_SUCCESS) return std::nullopt;
         return total_bytes;
       }});
  if (!found.words.empty()) notice(found.words);
  return found.asked;
}

/// Bytes on the device at once, if every live block used since that tick were there, with all that
/// cannot leave.
uint64_t EngineImpl::working_bytes(uint64_t since) const {
  uint64_t pages = frames_.shared().free_pages();
  for (const Block* block : live_) {
    const uint64_t w = block->word.load(std::memory_order_relaxed);
    const State state = word::state(w);
    if (block->segment != 0 || state == State::ready || state == State::draining ||
        (w & word::freed))
      continue;
    if (block->age.load(std::memory_order_relaxed) >= since || word::holds(w) > 0 ||
        immovable_pages(*block) > 0)
      pages += block->pages;
  }
  uint64_t bytes = pages * page_bytes +
                   static_cast<uint64_t>(std::max<int64_t>(reserved_tally_[0].current(), 0));
  for (const auto& region : placed_.regions()) bytes += region->mapped_granules() * granule_bytes;
  return bytes;
}

void EngineImpl::notice(const std::string& words) {
  counted_.notices.push_back(words);
  say(words);
  if (trace_) trace_->row(clock_.now_ns(), "notice", options_.device, 0, 0, 0, words);
}

}  // namespace firn
