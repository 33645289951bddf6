#include "allocator/lifetimes/places.h"

#include <algorithm>
#include <map>
#include <utility>

#include "allocator/layout/layout.h"
#include "firn/check.h"

namespace firn::lifetimes {

namespace {

/// If the shortage is at most this part of the capacity, other blocks can make up for it.
constexpr uint64_t short_part = 64;
/// At most moments a region has more room than its blocks use. If memory is short, it is taken
/// apart to give that room to others, and what they use next may have left. Above such a part of
/// the capacity that costs more than places save.
constexpr uint64_t apart_part = 32;
/// Fewer are not worth a region.
constexpr size_t places_least = 2;
/// A layout higher than the load by this part is good enough.
constexpr uint64_t good_enough_part = 512;

uint64_t whole(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

/// A sum over a period that repeats, by its change at each event.
class Curve {
 public:
  explicit Curve(uint64_t period) : changes_(period + 1) {}
  /// Adds `amount` from birth until death; for a block alive now, until death and from birth on.
  void add(const Stay& stay, uint64_t amount) {
    if (stay.death < stay.birth) base_ += amount;
    changes_[stay.birth] += static_cast<int64_t>(amount);
    changes_[stay.death] -= static_cast<int64_t>(amount);
  }
  /// Calls visit(ahead, sum) for each moment, the present first.
  template <class Visit>
  void walk(Visit&& visit) const {
    uint64_t sum = base_;
    for (uint64_t ahead = 0; ahead < changes_.size(); ++ahead)
      visit(ahead, sum += static_cast<uint64_t>(changes_[ahead]));
  }
  uint64_t peak() const {
    uint64_t most = 0;
    walk([&](uint64_t, uint64_t sum) { most = std::max(most, sum); });
    return most;
  }

 private:
  uint64_t base_ = 0;
  std::vector<int64_t> changes_;
};

/// The event with the fewest bytes alive: the period begins there.
uint64_t best_cut(const PlacesInput& input) {
  Curve curve(input.period);
  for (const Stay& stay : input.stays) curve.add(stay, stay.bytes);
  uint64_t cut = 0, least = UINT64_MAX;
  curve.walk([&](uint64_t ahead, uint64_t bytes) {
    if (bytes < least) {
      least = bytes;
      cut = ahead;
    }
  });
  return cut;
}

struct Lifespan {
  const Stay* stay;
  uint64_t begin, end;  // from the cut on
};

/// A block that lives across the cut has its place for itself: its life begins at 0.
std::vector<Lifespan> lives_of(const PlacesInput& input) {
  const uint64_t cut = best_cut(input);
  const auto after_cut = [&](uint64_t ahead) {
    return ahead > cut ? ahead - cut : ahead + input.period - cut;
  };
  std::vector<Lifespan> lives;
  for (const Stay& stay : input.stays) {
    const Lifespan life{&stay, after_cut(stay.birth), after_cut(stay.death)};
    lives.push_back(life.begin < life.end ? life : Lifespan{&stay, 0, input.period + 1});
  }
  return lives;
}

/// A place for each life, in their order; none if no layout is possible.
Places lay_out(const PlacesInput& input, std::span<const Lifespan> lives) {
  Places places;
  Curve asked(input.period), rounded(input.period);
  std::map<uint32_t, std::vector<size_t>> by_stream;
  for (size_t i = 0; i < lives.size(); ++i) {
    const Stay& stay = *lives[i].stay;
    asked.add(stay, stay.bytes);
    rounded.add(stay, stay.pages * input.page_bytes);
    by_stream[stay.stream].push_back(i);
    places.places.push_back({stay.identity, stay.stream, 0, stay.bytes, stay.pages});
  }
  places.asked_bytes = asked.peak();
  places.rounded_bytes = whole(rounded.peak(), input.granule_bytes);
  for (const auto& [stream, members] : by_stream) {
    std::vector<layout::Buffer> buffers;
    for (const size_t i : members)
      buffers.push_back({lives[i].begin, lives[i].end, lives[i].stay->bytes});
    const layout::Examined examined = layout::examine(buffers);
    if (examined.trouble) return {};
    layout::Options options;
    options.capacity = examined.load.bytes + examined.load.bytes / good_enough_part;
    options.deadline = input.patience;
    options.steps = input.steps;
    options.threads = 1;
    const layout::Layout found = layout::solve(buffers, options);
    places.heights.push_back({stream, whole(found.height, input.granule_bytes)});
    for (size_t i = 0; i < members.size(); ++i) places.places[members[i]].offset = found.offsets[i];
  }
  return places;
}

/// The granules in use, from event to event.
class Occupied {
 public:
  Occupied(const PlacesInput& input, std::span<const Lifespan> lives, const Places& places)
      : granule_bytes_(input.granule_bytes), changes_(input.period + 1) {
    for (const Places::Height& height : places.heights)
      alive_[height.stream].resize(height.bytes / granule_bytes_);
    for (size_t i = 0; i < lives.size(); ++i) {
      const Stay& stay = *lives[i].stay;
      changes_[stay.birth].push_back({&places.places[i], true});
      changes_[stay.death].push_back({&places.places[i], false});
      if (stay.death < stay.birth) change(places.places[i], true);
    }
  }
  /// Granules in use from `ahead` on; call it for each event in turn.
  uint64_t at(uint64_t ahead) {
    for (const auto& [place, begins] : changes_[ahead]) change(*place, begins);
    return granules_;
  }

 private:
  void change(const Places::Place& place, bool begins) {
    std::vector<uint32_t>& alive = alive_[place.stream];
    const uint64_t last = (place.offset + place.bytes - 1) / granule_bytes_;
    for (uint64_t granule = place.offset / granule_bytes_; granule <= last; ++granule) {
      if (begins)
        granules_ += alive[granule]++ == 0;
      else
        granules_ -= --alive[granule] == 0;
    }
  }

  const uint64_t granule_bytes_;
  std::vector<std::vector<std::pair<const Places::Place*, bool>>> changes_;
  std::map<uint32_t, std::vector<uint32_t>> alive_;  // by stream; of each granule: how many
  uint64_t granules_ = 0;
};

/// Pages beyond the capacity: summed over events, and the most at once.
struct Lacking {
  uint64_t without = 0, with = 0;
  uint64_t most_without = 0, most_with = 0;
  uint64_t occupied_most = 0;
  uint64_t taken_apart = 0;  // the most pages of the regions that others need
};

/// Unused granules of a region can be given to others: only the used ones take room.
Lacking lacking(const PlacesInput& input, std::span<const Lifespan> lives, const Places& places) {
  Curve placed(input.period);
  for (const Lifespan& life : lives) placed.add(*life.stay, life.stay->pages);
  Occupied occupied(input, lives, places);
  Lacking lacking;
  const uint64_t height = places.height_bytes() / input.page_bytes;
  uint64_t total = 0;
  size_t next = 0;
  const auto beyond = [&](uint64_t pages) {
    return pages - std::min(pages, input.capacity);
  };
  placed.walk([&](uint64_t ahead, uint64_t pages) {
    while (next < input.loads.size() && input.loads[next].ahead <= ahead)
      total = input.loads[next++].pages;
    const uint64_t in_places = occupied.at(ahead) * (input.granule_bytes / input.page_bytes);
    const uint64_t others = total - std::min(total, pages);
    const uint64_t with = beyond(others + in_places);
    lacking.taken_apart = std::max(lacking.taken_apart, beyond(others + height));
    lacking.occupied_most = std::max(lacking.occupied_most, in_places);
    const uint64_t without = beyond(total);
    lacking.without += without;
    lacking.with += with;
    lacking.most_without = std::max(lacking.most_without, without);
    lacking.most_with = std::max(lacking.most_with, with);
  });
  return lacking;
}

}  // namespace

Places plan_places(const PlacesInput& input) {
  if (input.period == 0) return {};
  FIRN_CHECK(input.page_bytes > 0 && input.granule_bytes > 0, "a plan of places without sizes");
  std::vector<Lifespan> all = lives_of(input);
  const bool any_left =
      std::any_of(all.begin(), all.end(), [](const Lifespan& life) { return life.stay->left; });
  for (const bool left_too : {true, false}) {
    if (left_too && !any_left) continue;
    if (!left_too) std::erase_if(all, [](const Lifespan& life) { return life.stay->left; });
    Places best;
    uint64_t least = UINT64_MAX;
    // First with the blocks that live across the cut inside the region, then outside of it.
    for (const bool across_too : {true, false}) {
      std::vector<Lifespan> lives = all;
      if (!across_too) std::erase_if(lives, [](const Lifespan& life) { return life.begin == 0; });
      if (lives.size() < places_least || (!across_too && lives.size() == all.size())) break;
      Places places = lay_out(input, lives);
      const Lacking lack = lacking(input, lives, places);
      places.occupied_bytes = lack.occupied_most * input.page_bytes;
      if (left_too && lack.most_with > input.capacity / short_part) continue;
      // A region fills the granules at its edges only in part.
      const uint64_t edge =
          places.heights.size() * input.granule_bytes / std::max<uint64_t>(input.page_bytes, 1);
      if (places.places.empty() || lack.taken_apart > input.capacity / apart_part + edge ||
          lack.with > lack.without + edge * input.period ||
          lack.most_with > lack.most_without + 2 * edge || lack.taken_apart >= least)
        continue;
      least = lack.taken_apart;
      best = std::move(places);
    }
    if (!best.places.empty()) return best;
  }
  return {};
}

}  // namespace firn::lifetimes
