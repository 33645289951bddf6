// When places are planned (places.cpp), for what, and when they are given up: once a period was the
// same for a few rounds in which frames were mapped anew. Planning runs in a thread that nothing
// waits for, without the lock.
#include <algorithm>

#include "allocator/base/cpu_timer.h"
#include "allocator/engine/hot.h"

namespace firn {

namespace {
// Periods that differ by less than this part of them are the same.
constexpr uint64_t same_part = 16;
// A period is planned for when it was the same for so many rounds; what left the device within as
// many gets no place.
constexpr uint64_t steady_rounds = 2;
// If more than one in so many planned allocations missed its place in a round, the program does
// something else.
constexpr uint64_t missed_part = 4;
// For so many rounds a region may still be growing.
constexpr uint64_t filling_rounds = 4;
// After each plan that failed the wait doubles, up to so many rounds.
constexpr uint64_t rounds_waited_most = 256;
// Rounds needed to tell whether places save anything.
constexpr uint64_t rounds_watched_least = 4;
// Longer periods are not planned for: it would take seconds of CPU time.
constexpr uint64_t period_most = 400'000;

bool alike(uint64_t a, uint64_t b) {
  return std::max(a, b) - std::min(a, b) <= std::min(a, b) / same_part;
}
}  // namespace

/// A block that leaves the device gets no place in the periods to come.
void EngineImpl::note_leaving(const Block& block) {
  const Life life = learner_ ? learner_->life_of(block) : 0;
  if (!life) return;
  const Identity identity = learner_->history().identity(life);
  if (identity >= placing_.left_at.size()) placing_.left_at.resize(identity + 1024);
  placing_.left_at[identity] = learner_->history().now();
}

/// Counts an allocation with a planned place that got a block of its own instead.
void EngineImpl::note_allocation(Identity identity, const Block& block) {
  if (!placing_.active || block.place_bytes != 0 || identity >= placing_.of.size()) return;
  for (uint32_t i = placing_.of[identity]; i != 0; i = placing_.places[i - 1].next)
    if (!placing_.places[i - 1].barred) {
      ++counted_.places_missed;
      return;
    }
}

/// The plan failed: the wait until the next one doubles each time.
void EngineImpl::give_up_places() {
  stop_placing();
  placing_.since = learner_->history().now();
  placing_.rounds_waited = std::min(placing_.rounds_waited * 2, rounds_waited_most);
  placing_.next = learner_->history().now() + placing_.rounds_waited * learner_->history().period();
}

/// Does the program still do what the places were planned for? (An iteration that differs a little
/// now and then is followed by others as before.)
void EngineImpl::follow_places() {
  const uint64_t now = learner_->history().now();
  // Until the region is mapped, misses are not the program's doing.
  const bool filling = now < placing_.adopted + filling_rounds * placing_.period;
  const uint64_t planned = placing_.places.size();
  const uint64_t missed = counted_.places_missed - placing_.missed_before;
  if (!filling && missed * missed_part > planned) return give_up_places();
  if (now < placing_.round + placing_.period) return;
  const uint64_t placed = counted_.placed - placing_.placed_before;
  if ((placed + missed) * missed_part < planned) return give_up_places();
  counted_.maps_with_places = mapper_.maps() - placing_.maps_before;
  if (!filling) {
    // If memory is so short that regions are taken apart again and again, it is too short for them.
    placing_.maps_watched += counted_.maps_with_places;
    if (++placing_.rounds_watched == rounds_watched_least) {
      if (placing_.maps_watched * 10 > counted_.maps_without_places * rounds_watched_least * 9)
        return give_up_places();
      placing_.rounds_watched = placing_.maps_watched = 0;
      placing_.rounds_waited = 1;
    }
  }
  begin_round();
}

/// Is it time to plan places, or to give them up?
void EngineImpl::consider_places() {
  if (!options_.places || options_.adversarial) return;
  const uint64_t now = learner_->history().now(), period = learner_->history().period();
  if (placing_.active) return follow_places();
  if (!learner_->history().known() || !alike(period, placing_.seen)) {
    placing_.seen = learner_->history().known() ? period : 0;
    placing_.since = now;
    return begin_round();
  }
  if (period == 0 || now < placing_.round + period) return;
  const uint64_t maps = mapper_.maps() - placing_.maps_before;
  if (!placing_.due && now >= placing_.since + steady_rounds * period &&
             now >= placing_.next && maps > 0 && period <= period_most) {
    counted_.maps_without_places = maps;
    take_places_stock();
    placing_.due = placing_.ready = true;
    ponder_due_.store(true, std::memory_order_release);
  }
  begin_round();
}

void EngineImpl::begin_round() {
  placing_.round = learner_->history().now();
  placing_.maps_before = mapper_.maps();
  placing_.placed_before = counted_.placed;
  placing_.missed_before = counted_.places_missed;
}

/// Collects what may have places, and how much memory everything takes, in the period to come.
void EngineImpl::take_places_stock() {
  lifetimes::PlacesInput& stock = placing_.stock;
  const uint64_t period = learner_->history().period();
  stock = {};
  stock.period = period;
  stock.page_bytes = page_bytes;
  stock.granule_bytes = granule_bytes;
  if (options_.no_wall_clock) {
    stock.patience = std::chrono::hours(1);
    stock.steps = 200;
  }
  const uint64_t budget = frames_.budget_granules() * granule_pages;
  // (Gaps of shared frames are not counted: most are those of blocks that may have places.)
  const uint64_t small = static_cast<uint64_t>(reserved_tally_[0].current()) / page_bytes;
  stock.capacity = budget - std::min(budget, small);
  uint64_t pages = 0;
  for (const Block* block : live_) {
    const State state = block->state();
    if (block->segment == 0 && state != State::ready && state != State::draining &&
        state != State::free)
      pages += block->pages;
  }
  for (const auto& region : region_owner_)
    for (const auto& [address, block] : region->used()) pages += block->pages;
  stock.loads.push_back({0, pages});
  for (uint64_t ahead = 1; ahead <= period; ++ahead) {
    const History::Upcoming coming = learner_->history().upcoming(ahead);
    const bool frees = coming.kind == EventKind::free;
    if (!frees && coming.kind != EventKind::allocate) continue;
    const uint64_t size = coming.bytes / page_bytes;
    pages = frees ? pages - std::min(pages, size) : pages + size;
    stock.loads.push_back({ahead, pages});
  }
  find_stays(stock.stays);
}

/// Finds what is allocated in the period to come, and when it is freed, in that period or the next.
void EngineImpl::find_stays(std::vector<lifetimes::Stay>& stays) {
  const uint64_t period = learner_->history().period(), now = learner_->history().now();
  std::vector<lifetimes::Stay> all;
  std::vector<uint32_t> player;  // by identity: stay + 1
  const auto of = [&](Identity identity) -> uint32_t& {
    if (identity >= player.size()) player.resize(identity + 1024);
    return player[identity];
  };
  for (uint64_t ahead = 1; ahead <= 2 * period; ++ahead) {
    const History::Upcoming coming = learner_->history().upcoming(ahead);
    if (coming.kind == EventKind::free) {
      if (const uint32_t stay = std::exchange(of(coming.identity), 0))
        all[stay - 1].death = (ahead - 1) % period + 1;
    } else if (coming.kind == EventKind::allocate) {
      // A block that still has this identity goes on as another, and is freed as that.
      uint32_t older = std::exchange(of(coming.identity), 0);
      for (Identity at = coming.identity; older && (at = learner_->history().marker(at));)
        std::swap(older, of(at));
      if (ahead > period) continue;
      const std::optional<uint64_t> bytes = learner_->bytes_of(coming.identity, coming.bytes);
      const std::optional<unsigned> stream = learner_->stream_of(coming.identity);
      if (!bytes || !stream) continue;
      const bool left = coming.identity < placing_.left_at.size() &&
                        placing_.left_at[coming.identity] != 0 &&
                        placing_.left_at[coming.identity] + steady_rounds * period > now;
      all.push_back({coming.identity, *stream, ahead, 0, *bytes, coming.bytes / page_bytes,
                     left});
      of(coming.identity) = static_cast<uint32_t>(all.size());
    }
  }
  for (const lifetimes::Stay& stay : all)
    if (stay.death != 0 && stay.death != stay.birth && stay.bytes >= Region::part_bytes)
      stays.push_back(stay);
}

bool EngineImpl::ponder_places() {
  lifetimes::PlacesInput stock;
  {
    Lock lock(mutex_);
    if (!std::exchange(placing_.ready, false)) return false;
    std::swap(stock, placing_.stock);
  }
  uint64_t cpu_ns = 0;
  lifetimes::Places planned;
  {
    CpuTimer timer(cpu_ns);
    planned = lifetimes::plan_places(stock);
  }
  Entered context(*this);
  Lock lock(mutex_);
  counted_.plan_ns += cpu_ns;
  placing_.due = false;
  adopt_places(planned, stock.period);
  return true;
}

void EngineImpl::adopt_places(const lifetimes::Places& planned, uint64_t period) {
  if (abandoned_ || !learner_->history().known() || !alike(learner_->history().period(), period)) return;
  placing_.active = false;
  for (const auto& region : region_owner_) collect_places(*region);
  for (Placing::Place& place : placing_.places)
    if (place.block && !place.region->used().contains(place.address)) drop_placed(*place.block);
  placing_.places.clear();
  placing_.of.clear();
  if (planned.places.empty()) {
    give_up_places();
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
  placing_.period = period;
  placing_.adopted = learner_->history().now();
  placing_.rounds_watched = placing_.maps_watched = 0;
  counted_.places = placing_.places.size();
  counted_.region_planned_bytes = placing_.pages * page_bytes;
  counted_.waste_without_places = planned.rounded_bytes - planned.asked_bytes;
  counted_.waste_with_places = planned.occupied_bytes - planned.asked_bytes;
  begin_round();
}

}  // namespace firn
