// Planned places (policy/place_planner.h): what the engine hands over when it asks whether places
// are to be planned or given up, the thread that plans, and how a plan is adopted.
#include <algorithm>

#include "allocator/base/cpu_timer.h"
#include "allocator/engine/hot.h"

namespace firn {

PlacePlanner::Figures EngineImpl::places_figures() const {
  return {placed_.active(), placed_.places(), placed_.placed(), mapper_.maps()};
}

void EngineImpl::consider_places() {
  switch (planner_.consider(*learner_, places_figures())) {
    case PlacePlanner::Then::nothing: return;
    case PlacePlanner::Then::give_up: return stop_placing();
    case PlacePlanner::Then::plan: take_places_stock();
  }
  ponder_due_.store(true, std::memory_order_release);
}

void EngineImpl::take_places_stock() {
  const uint64_t budget = frames_.budget_granules() * granule_pages;
  // (Gaps of shared frames are not counted: most are those of blocks that may have places.)
  const uint64_t small = static_cast<uint64_t>(reserved_tally_[0].current()) / page_bytes;
  uint64_t pages = 0;
  for (const Block* block : live_) {
    const State state = block->state();
    if (block->segment == 0 && state != State::ready && state != State::draining &&
        state != State::free)
      pages += block->pages;
  }
  for (const auto& region : placed_.regions())
    for (const auto& [address, block] : region->used()) pages += block->pages;
  planner_.take(*learner_, budget - std::min(budget, small), pages);
}

bool EngineImpl::ponder_places() {
  std::optional<lifetimes::PlacesInput> stock;
  {
    Lock lock(mutex_);
    stock = planner_.due();
  }
  if (!stock) return false;
  uint64_t cpu_ns = 0;
  lifetimes::Places planned;
  {
    CpuTimer timer(cpu_ns);
    planned = lifetimes::plan_places(*stock);
  }
  Entered context(*this);
  Lock lock(mutex_);
  counted_.plan_ns += cpu_ns;
  if (planner_.end(*learner_, stock->period) && !abandoned_) adopt_places(planned, stock->period);
  return true;
}

void EngineImpl::adopt_places(const lifetimes::Places& planned, uint64_t period) {
  placed_.stop();
  for (const auto& region : placed_.regions()) collect_places(*region);
  for (Block* block : placed_.forget()) drop_placed(*block);
  if (planned.places.empty()) {
    stop_placing();
    planner_.give_up(*learner_);
    return;
  }
  uint64_t bytes = 0;
  for (const lifetimes::Places::Height& height : planned.heights) {
    Region* region = make_region(height.stream);
    if (!region || height.bytes > region->bytes()) continue;
    bytes += height.bytes;
    for (const lifetimes::Places::Place& place : planned.places)
      if (place.stream == height.stream)
        placed_.add_place(*region, place.identity, place.pages * page_bytes, place.offset,
                          place.bytes);
    ready(height.stream).placing.store(true, std::memory_order_relaxed);
  }
  placed_.begin(bytes);
  planner_.adopted(*learner_, planned, period, places_figures());
}

}  // namespace firn
