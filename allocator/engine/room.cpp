// The means by which room is made (their order: make_room.cpp): ready blocks are taken back, blocks
// leave, the coldest first, or are made clean ahead.
#include <algorithm>
#include <bit>
#include <optional>

#include <fmt/format.h>

#include "allocator/base/sizes.h"
#include "allocator/engine/hot.h"
#include "allocator/engine/tiers.h"
#include "firn/canary.h"
#include "firn/check.h"

namespace firn {

/// Has nothing left the device for `patience_ns`, though threads asked for it, with only work on
/// the device in the way? (A store without an answer, a failing one for a while, and host memory
/// being pinned are waited for: they do not wait for us.)
bool EngineImpl::still(uint64_t patience_ns) {
  const uint64_t now = clock_.now_ns();
  const uint64_t spans = mapper_.spans_given_up(), copied = movement_.moved().spilled_bytes;
  const uint64_t left = spans + copied;
  // Nearly full host memory without a store: copies of what stays on the device may give way to each
  // other, and be made anew. Whoever has copied all of the device twice, and nothing left, will not
  // make room.
  if (spans != still_.spans || now - still_.looked_ns > still_ns / 2) still_.copied = copied;
  still_.spans = spans;
  still_.futile = !store_ &&
                  copied - still_.copied > 2 * frames_.budget_granules() * granule_bytes;
  // (Without a request for some time, nothing was to leave.)
  const bool pinned_soon = movement_.staging_wanted() && host_.may_grow();
  if (left != still_.left || transfers_.requesting() || pinned_soon ||
      movement_.writes().pauses(now) || now - still_.looked_ns > still_ns / 2)
    still_.since_ns = now;
  still_.left = left;
  still_.looked_ns = now;
  return still_.futile || now - still_.since_ns >= patience_ns;
}

/// Will room come while the caller waits? Not from what a stream under capture used: its owner, who
/// may be the caller, ends that first.
bool EngineImpl::something_moves() {
  if (!movement_.faulting().empty() || mapper_.mapping() || mapper_.unmapping() ||
      !unkept_.empty())
    return true;
  const auto settles = [this](const Block* block) FIRN_HELD { return uses_.close(*block); };
  const std::vector<Block*>* const lists[] = {&movement_.spilling(), &parked_, &deferred_,
                                              &draining_};
  for (const auto* blocks : lists)
    if (std::any_of(blocks->begin(), blocks->end(), settles)) return true;
  return false;
}

/// Takes every ready block. The next allocation of its size finds it in parked_.
void EngineImpl::park_ready(bool small_too) {
  for (unsigned stream = 0; stream < streams_.count(); ++stream) {
    ReadyBlocks* blocks = ready_[stream].load(std::memory_order_relaxed);
    if (!blocks) continue;
    const unsigned least = small_too ? 0 : size_class::small_count;
    blocks->take_all(table_, least, size_class::count, [&](Block& block) FIRN_HELD {
      if (block.pages != 0) {
        parked_.push_back(&block);
        return;
      }
      retire_small(block);
    });
  }
}

/// Unmaps parked blocks whose uses are over, in the order of Births, until `granules` are
/// available; records events behind the others. `spare_claimed`: not those that coming allocations
/// count on.
void EngineImpl::reclaim_parked(uint64_t granules, bool spare_claimed) {
  births_.begin_reclaiming(learner_.get(), parked_);
  for (size_t i = parked_.size(); i-- > 0;) {
    Block& block = *parked_[i];
    bool zero_copy = block.word.load(std::memory_order_relaxed) & word::zero_copy;
    if (!zero_copy && frames_.available() + mapper_.going_granules() >= granules) continue;
    if (spare_claimed && !zero_copy && births_.spared(block)) continue;
    if (!uses_.over(block)) {
      (void)uses_.close(block);
      continue;
    }
    parked_.erase(parked_.begin() + static_cast<ptrdiff_t>(i));
    unmap_spans(block);
    transit(block, Event::reclaim, word::zero_copy);
    drop_descriptor(block);
  }
}

/// Begins to evict at least `pages` of the block, and adds those that leave to `started`.
bool EngineImpl::evict_block(Block& block, uint64_t pages, uint64_t& started) {
  if (!movement_.start_spill(block, true, pages)) return false;
  started += Movement::leaving_pages(block);
  ++counted_.evictions;
  return true;
}

/// Evicts the coldest blocks, as many pages as asked for. `except`: a block that is wanted itself.
uint64_t EngineImpl::evict(uint64_t pages, const Block* except) {
  if ((spilling_stopped_ && !FIRN_CANARY(38)) || health_.dead()) return 0;
  if (watch_begins_ != std::thread::id()) return 0;
  if (movement_.stuck()) return evict_clean(pages, except);
  std::optional<Block*> wanted;
  if (except) wanted = const_cast<Block*>(except);
  uint64_t started = EngineTiers::carry_out(*this).evict(pages, wanted);
  Candidates coldest(ages_, live_, uses_, {.again = true, .except = except});
  while (started < pages) {
    Block* block = coldest.next(tick());
    if (!block) break;
    if (evict_block(*block, pages - started, started)) continue;
    block->age.store(next_tick(), std::memory_order_relaxed);
    coldest.stays();
  }
  return started;
}

/// Evicts blocks whose leaving part is valid elsewhere, the oldest first.
uint64_t EngineImpl::evict_clean(uint64_t pages, const Block* except) {
  uint64_t started = 0;
  Candidates oldest(ahead_, live_, uses_, {.by = AgeOrder::By::age, .except = except});
  while (started < pages) {
    Block* block = oldest.next(tick());
    if (!block) break;
    const uint64_t clean = clean_pages(*block);
    if (clean > 0 && !(block->word.load() & word::zero_copy))
      (void)evict_block(*block, std::min(clean, pages - started), started);
  }
  return started;
}

/// Makes the oldest blocks' bytes valid elsewhere ahead of need, without unmapping them: when room
/// is needed they are dropped without I/O.
bool EngineImpl::clean_ahead() {
  const uint64_t now = tick();
  if (!pressed_ || movement_.stuck() || options_.adversarial || !movement_.spilling().empty() ||
      waiting_ > 0 || now < ahead_tick_ + live_.size() / 8 + 1)
    return false;
  ahead_tick_ = now;
  const uint64_t target = std::max<uint64_t>(frames_.budget_granules() * granule_pages / 16, 1);
  // (A segment has no copies while it is there.)
  Candidates coldest(ahead_, live_, uses_, {.segments = false, .aside_last = false});
  uint64_t pages = 0;
  bool any = false;
  while (pages < target) {
    Block* block = coldest.next(now);
    if (!block) break;
    pages += block->pages;
    if (clean(*block) || Movement::drops(*block) || !uses_.over(*block)) continue;
    any |= movement_.start_spill(*block, false);
    if (host_.used() > host_.budget() * 3 / 4) break;
  }
  return any;
}

/// Holds of all threads; thread_holds() are the caller's.
int64_t EngineImpl::all_holds() const {
  int64_t holds = 0;
  for (const auto& region : placed_.regions())
    for (const auto& [address, block] : region->used())
      holds += static_cast<int64_t>(word::holds(block->word.load(std::memory_order_relaxed)));
  for (const Block* block : live_)  // (That of a use in host memory is no thread's.)
    holds += static_cast<int64_t>(word::holds(block->word.load(std::memory_order_relaxed))) -
             (block->at_host ? 1 : 0);
  return holds;
}

}  // namespace firn
