// Planned places (policy/place_planner.h): what the engine hands over when it asks whether places
// are to be planned or given up, the thread that plans, and how a plan is adopted.
#include <algorithm>

#include "allocator/base/cpu_timer.h"
#include "allocator/engine/hot.h"

namespace firn {

PlacePlanner::Figures EngineImpl::places_figures() const {
  return {placing_.active, placing_.places.size(), counted_.placed, mapper_.maps()};
}

/// Notes an allocation with a planned place that got a block of its own instead.
void EngineImpl::note_allocation(Identity identity, const Block& block) {
  if (!placing_.active || block.place_bytes != 0 || identity >= placing_.of.size()) return;
  for (uint32_t i = placing_.of[identity]; i != 0; i = placing_.places[i - 1].next)
    if (!placing_.places[i - 1].barred) return planner_.note_missed();
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
  for (const auto& region : region_owner_)
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
  placing_.active = false;
  for (const auto& region : region_owner_) collect_places(*region);
  for (Placing::Place& place : placing_.places)
    if (place.block && !place.region->used().contains(place.address)) drop_placed(*place.block);
  placing_.places.clear();
  placing_.of.clear();
  if (planned.places.empty()) {
    stop_placing();
    planner_.give_up(*learner_);
    return;
  }
  placing_.pages = 0;
  for (const lifetimes::Places::Height& height : planned.heights) {
    Region* region = make_region(height.stream);
    if (!region || height.bytes > region->bytes()) continue;
    placing_.pages += height.bytes / page_bytes;
    for (const lifetimes::Places::Place& place : planned.places) {
      if (place.stream != height.stream) continue;
      if (place.identity >= placing_.of.size()) placing_.of.resize(place.identity + 1024);
      uint32_t& first = placing_.of[place.identity];
      placing_.places.push_back({place.identity, place.pages * page_bytes,
                                 region->base() + place.offset, place.bytes, region, nullptr,
                                 false, first});
      first = static_cast<uint32_t>(placing_.places.size());
    }
    ready(height.stream).placing.store(true, std::memory_order_relaxed);
  }
  placing_.active = !placing_.places.empty();
  planner_.adopted(*learner_, planned, period, places_figures());
}

}  // namespace firn
