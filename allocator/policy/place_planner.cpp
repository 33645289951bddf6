#include "allocator/policy/place_planner.h"

#include <algorithm>
#include <utility>

#include "allocator/blocks/region.h"
#include "allocator/memory/units.h"

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

void PlacePlanner::note_leaving(const Learner& learner, const Block& block) {
  const Life life = learner.life_of(block);
  if (!life) return;
  const Identity identity = learner.history().identity(life);
  if (identity >= left_at_.size()) left_at_.resize(identity + 1024);
  left_at_[identity] = learner.history().now();
}

void PlacePlanner::give_up(const Learner& learner) {
  const History& history = learner.history();
  since_ = history.now();
  rounds_waited_ = std::min(rounds_waited_ * 2, rounds_waited_most);
  next_ = history.now() + rounds_waited_ * history.period();
}

/// Does the program still do what the places were planned for? (An iteration that differs a little
/// now and then is followed by others as before.)
PlacePlanner::Then PlacePlanner::follow(const Learner& learner, const Figures& figures) {
  const auto failed = [&]() FIRN_HELD {
    give_up(learner);
    return Then::give_up;
  };
  const uint64_t now = learner.history().now();
  // Until the region is mapped, misses are not the program's doing.
  const bool filling = now < adopted_ + filling_rounds * period_;
  const uint64_t missed = missed_ - missed_before_;
  if (!filling && missed * missed_part > figures.places) return failed();
  if (now < round_ + period_) return Then::nothing;
  const uint64_t placed = figures.placed - placed_before_;
  if ((placed + missed) * missed_part < figures.places) return failed();
  maps_with_ = figures.maps - maps_before_;
  if (!filling) {
    // If memory is so short that regions are taken apart again and again, it is too short for them.
    maps_watched_ += maps_with_;
    if (++rounds_watched_ == rounds_watched_least) {
      if (maps_watched_ * 10 > maps_without_ * rounds_watched_least * 9) return failed();
      rounds_watched_ = maps_watched_ = 0;
      rounds_waited_ = 1;
    }
  }
  begin_round(learner, figures);
  return Then::nothing;
}

PlacePlanner::Then PlacePlanner::consider(const Learner& learner, const Figures& figures) {
  if (!on_) return Then::nothing;
  const History& history = learner.history();
  const uint64_t now = history.now(), period = history.period();
  if (figures.active) return follow(learner, figures);
  if (!history.known() || !alike(period, seen_)) {
    seen_ = history.known() ? period : 0;
    since_ = now;
    begin_round(learner, figures);
    return Then::nothing;
  }
  if (period == 0 || now < round_ + period) return Then::nothing;
  const uint64_t maps = figures.maps - maps_before_;
  const bool plan = !due_ && now >= since_ + steady_rounds * period && now >= next_ && maps > 0 &&
                    period <= period_most;
  if (plan) maps_without_ = maps;
  begin_round(learner, figures);
  return plan ? Then::plan : Then::nothing;
}

void PlacePlanner::begin_round(const Learner& learner, const Figures& figures) {
  round_ = learner.history().now();
  maps_before_ = figures.maps;
  placed_before_ = figures.placed;
  missed_before_ = missed_;
}

void PlacePlanner::take(const Learner& learner, uint64_t capacity, uint64_t pages) {
  const History& history = learner.history();
  const uint64_t period = history.period();
  stock_ = {};
  stock_.period = period;
  stock_.page_bytes = page_bytes;
  stock_.granule_bytes = granule_bytes;
  if (no_wall_clock_) {
    stock_.patience = std::chrono::hours(1);
    stock_.steps = 200;
  }
  stock_.capacity = capacity;
  stock_.loads.push_back({0, pages});
  for (uint64_t ahead = 1; ahead <= period; ++ahead) {
    const History::Upcoming coming = history.upcoming(ahead);
    const bool frees = coming.kind == EventKind::free;
    if (!frees && coming.kind != EventKind::allocate) continue;
    const uint64_t size = coming.bytes / page_bytes;
    pages = frees ? pages - std::min(pages, size) : pages + size;
    stock_.loads.push_back({ahead, pages});
  }
  find_stays(learner, stock_.stays);
  due_ = ready_ = true;
}

/// Finds what is allocated in the period to come, and when it is freed, in that period or the next.
void PlacePlanner::find_stays(const Learner& learner, std::vector<lifetimes::Stay>& stays) const {
  const History& history = learner.history();
  const uint64_t period = history.period(), now = history.now();
  std::vector<lifetimes::Stay> all;
  std::vector<uint32_t> player;  // by identity: stay + 1
  const auto of = [&](Identity identity) -> uint32_t& {
    if (identity >= player.size()) player.resize(identity + 1024);
    return player[identity];
  };
  for (uint64_t ahead = 1; ahead <= 2 * period; ++ahead) {
    const History::Upcoming coming = history.upcoming(ahead);
    if (coming.kind == EventKind::free) {
      if (const uint32_t stay = std::exchange(of(coming.identity), 0))
        all[stay - 1].death = (ahead - 1) % period + 1;
    } else if (coming.kind == EventKind::allocate) {
      // A block that still has this identity goes on as another, and is freed as that.
      uint32_t older = std::exchange(of(coming.identity), 0);
      for (Identity at = coming.identity; older && (at = history.marker(at));)
        std::swap(older, of(at));
      if (ahead > period) continue;
      const std::optional<uint64_t> bytes = learner.bytes_of(coming.identity, coming.bytes);
      const std::optional<unsigned> stream = learner.stream_of(coming.identity);
      if (!bytes || !stream) continue;
      const bool left = coming.identity < left_at_.size() && left_at_[coming.identity] != 0 &&
                        left_at_[coming.identity] + steady_rounds * period > now;
      all.push_back({coming.identity, *stream, ahead, 0, *bytes, coming.bytes / page_bytes,
                     left});
      of(coming.identity) = static_cast<uint32_t>(all.size());
    }
  }
  for (const lifetimes::Stay& stay : all)
    if (stay.death != 0 && stay.death != stay.birth && stay.bytes >= Region::part_bytes)
      stays.push_back(stay);
}

std::optional<lifetimes::PlacesInput> PlacePlanner::due() {
  if (!std::exchange(ready_, false)) return std::nullopt;
  return std::exchange(stock_, {});
}

bool PlacePlanner::end(const Learner& learner, uint64_t period) {
  due_ = false;
  return learner.history().known() && alike(learner.history().period(), period);
}

void PlacePlanner::adopted(const Learner& learner, const lifetimes::Places& planned,
                           uint64_t period, const Figures& figures) {
  period_ = period;
  adopted_ = learner.history().now();
  rounds_watched_ = maps_watched_ = 0;
  waste_without_ = planned.rounded_bytes - planned.asked_bytes;
  waste_with_ = planned.occupied_bytes - planned.asked_bytes;
  begin_round(learner, figures);
}

}  // namespace firn
