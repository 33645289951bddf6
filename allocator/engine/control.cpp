// Orders from outside, which concern all of the device's memory: giving back, another budget,
// everything away, nothing away, open to a peer.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "allocator/base/sizes.h"
#include "allocator/engine/hot.h"
#include "firn/canary.h"

namespace firn {

void EngineImpl::trim() {
  Entered context(*this);
  if (!can_use(context)) return;
  Lock lock(mutex_);
  if (learner_) {  // nothing is made ready ahead until the program goes on
    learn(lock);
    births_.pause(*learner_);
  }
  park_ready(true);
  (void)release_segments();
  bool places_wait = !placed_.regions().empty();
  const auto leaving = [&]() FIRN_HELD {
    return places_wait || !parked_.empty() || !deferred_.empty() || !draining_.empty() ||
           !unkept_.empty() || mapper_.unmapping();
  };
  for (int round = 0; round < 1000 && leaving() && !health_.dead(); ++round) {
    pump_locked();
    park_ready(true);
    (void)release_segments();
    reclaim_parked(UINT64_MAX);
    places_wait = reclaim_regions(UINT64_MAX) > 0;
    (void)carry_out_unmappings(lock);
    if (leaving()) wait(lock, poll_ns);
  }
  while (release_segments() && !health_.dead()) {
    wait(lock, poll_ns);
    pump_locked();
  }
  frames_.trim();
}

Result<void> EngineImpl::set_budget(uint64_t bytes) {
  if (bytes < 2 * granule_bytes)
    return make_error(Code::invalid_argument, 0,
                      fmt::format("firn_budget: {} bytes is less than the minimum of {} bytes",
                                  bytes, 2 * granule_bytes));
  Entered context(*this);
  if (Result<void> usable = can_use(context); !usable) return usable;
  Lock lock(mutex_);
  frames_.set_budget(bytes);
  shrink_to_budget(lock, UINT64_MAX);
  return health_.dead() ? Result<void>(health_.error()) : Result<void>();
}

/// Gives back frames held beyond the budget, as far as they come free until then.
void EngineImpl::shrink_to_budget(Lock& lock, uint64_t until_ns) {
  while (frames_.held_granules() > frames_.budget_granules() && !health_.dead()) {
    park_ready(true);
    reclaim_parked(UINT64_MAX);
    const bool places_wait = reclaim_regions(UINT64_MAX) > 0;
    (void)carry_out_unmappings(lock);
    frames_.trim(0);
    if (frames_.held_granules() <= frames_.budget_granules()) break;
    const uint64_t over =
        (frames_.held_granules() - frames_.budget_granules()) * granule_pages;
    const uint64_t unmapped = mapper_.spans_given_up();
    uint64_t leaving = movement_.leaving_pages() + mapper_.going_granules() * granule_pages;
    for (const auto* blocks : {&deferred_, &draining_})
      for (const Block* block : *blocks) leaving += block->device;
    if (leaving < over) evict(over - leaving, nullptr);
    pump_locked();
    if (clock_.now_ns() >= until_ns) break;
    if (unmapped != mapper_.spans_given_up()) continue;
    if (!places_wait && !something_moves()) break;  // the rest is pinned
    if (still(still_ns)) {
      trouble(fmt::format("firn_budget is {}, but {} are on the device: the GPU work that uses "
                          "them is still running, perhaps waiting for another process",
                          format_size(frames_.budget_granules() * granule_bytes),
                          format_size(frames_.held_granules() * granule_bytes)));
      break;
    }
    wait(lock, poll_ns);
  }
  (void)carry_out_unmappings(lock);
  if (frames_.held_granules() > frames_.budget_granules()) frames_.trim(0);
}

uint64_t EngineImpl::give_way(uint64_t bytes, uint64_t patience_ns) {
  Entered context(*this);
  if (!can_use(context)) return 0;
  Lock lock(mutex_);
  // Blocks whose operators were not watched so far may leave the next time.
  if (!watching_.load(std::memory_order_relaxed)) watch_due_ = true;
  const uint64_t held = frames_.held_granules();
  const uint64_t before = std::min(held, frames_.budget_granules());
  const uint64_t asked = (bytes + granule_bytes - 1) / granule_bytes;
  const uint64_t least = 2;  // as in set_budget()
  if (before <= least) return 0;
  const uint64_t budget = frames_.budget_granules();
  frames_.set_budget((before - std::min(asked, before - least)) * granule_bytes);
  shrink_to_budget(lock, clock_.now_ns() + patience_ns);
  const uint64_t left = frames_.held_granules();
  if (left >= held) {  // for nothing
    frames_.set_budget(budget * granule_bytes);
    return 0;
  }
  frames_.set_budget(std::max(left, frames_.budget_granules()) * granule_bytes);
  return (held - left) * granule_bytes;
}

void EngineImpl::spill_all() {
  Entered context(*this);
  if (!can_use(context)) return;
  Lock lock(mutex_);
  for (int round = 0; round < 100'000 && !health_.dead(); ++round) {
    if (!movement_.stuck())
      for (Block* block : std::vector<Block*>(live_)) movement_.start_spill(*block, true);
    (void)carry_out_unmappings(lock);
    if (movement_.spilling().empty() || still(still_ns / 10)) return;
    if (!pump_locked() || round % 4 == 3) wait(lock, poll_ns);
  }
}

void EngineImpl::spill_away() {
  Entered context(*this);
  if (!can_use(context)) return;
  {
    Lock lock(mutex_);
    learn(lock);
    if (learner_) asleep_at_ = learner_->history().now();  // nothing is fetched meanwhile
    hints_.clear();
    prefetches_.clear();
    if (!watching_.load(std::memory_order_relaxed)) watch_due_ = true;
  }
  spill_all();
  trim();
  Lock lock(mutex_);
  movement_.room_came();  // what did not fit now may fit later
  learn(lock);
  if (learner_) asleep_at_ = learner_->history().now();
}

void EngineImpl::stop_spilling(bool stopped, bool for_good) {
  Entered context(*this);
  if (!can_use(context)) return;
  Lock lock(mutex_);
  stopped |= spilling_ended_ |= for_good;
  if (std::exchange(spilling_stopped_, stopped) == stopped || !stopped) return;
  for (Block* block : std::vector<Block*>(movement_.spilling()))
    if (block->leave && !(block->word.load() & word::zero_copy))
      movement_.keep(*block);
}

Result<void> EngineImpl::allow_peer(int device) {
  Entered context(*this);
  if (Result<void> usable = can_use(context); !usable) return usable;
  Lock lock(mutex_);
  return mapper_.add_peer(device, [this](const Mapper::Open& open) FIRN_HELD -> Result<void> {
    for (const Block* block : live_)
      for (const Span& span : block->spans)
        if (span.mapped())
          if (Result<void> opened = open(address_of(*block, span), bytes_at(*block, span));
              !opened)
            return opened;
    for (uint32_t i = 0; i < small_blocks_.segments(); ++i)
      if (const Segment& segment = small_blocks_.segment(i); !segment.frames.empty())
        if (Result<void> opened = open(segment.address, granule_bytes); !opened) return opened;
    for (const auto& region : placed_.regions())
      for (const auto& [address, mapped] : region->frames())
        if (Result<void> opened = open(address, mapped.frame.bytes()); !opened) return opened;
    return {};
  });
}

}  // namespace firn
