#include "allocator/lifetimes/places.h"

#include <algorithm>

#include "allocator/layout/layout.h"

namespace firn::lifetimes {

namespace {

/// Such parts of the period are tried as the longest life, one after the other.
constexpr uint64_t parts_tried[] = {1, 2, 4, 8, 16, 32, 64};
/// Fewer are not worth a region.
constexpr size_t places_least = 2;
/// A layout so much higher than the load is good enough: a part.
constexpr uint64_t good_enough_part = 512;

uint64_t whole(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

/// Changes of a sum over a period that repeats: from an event on, by so much.
class Curve {
 public:
  explicit Curve(uint64_t period) : changes_(period + 1) {}
  /// Added from birth until death; one that is alive now, until death and from birth on.
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

/// The moment at which the fewest bytes of them are alive: there the period begins.
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

struct Life {
  const Stay* stay;
  uint64_t begin, end;  // from the cut on
};

/// Those that do not live across the cut.
std::vector<Life> lives_between_cuts(const PlacesInput& input) {
  const uint64_t cut = best_cut(input);
  const auto after_cut = [&](uint64_t ahead) {
    return ahead > cut ? ahead - cut : ahead + input.period - cut;
  };
  std::vector<Life> lives;
  for (const Stay& stay : input.stays) {
    const Life life{&stay, after_cut(stay.birth), after_cut(stay.death)};
    if (life.begin < life.end && stay.bytes > 0) lives.push_back(life);
  }
  return lives;
}

Places lay_out(const PlacesInput& input, std::span<const Life> lives) {
  Places places;
  Curve asked(input.period), rounded(input.period);
  std::vector<uint32_t> streams;
  for (const Life& life : lives) {
    asked.add(*life.stay, life.stay->bytes);
    rounded.add(*life.stay, life.stay->grains * input.grain_bytes);
    if (std::find(streams.begin(), streams.end(), life.stay->stream) == streams.end())
      streams.push_back(life.stay->stream);
  }
  places.asked_bytes = asked.peak();
  places.rounded_bytes = whole(rounded.peak(), input.granule_bytes);
  for (const uint32_t stream : streams) {
    std::vector<layout::Buffer> buffers;
    std::vector<const Stay*> stays;
    for (const Life& life : lives) {
      if (life.stay->stream != stream) continue;
      buffers.push_back({life.begin, life.end, life.stay->bytes});
      stays.push_back(life.stay);
    }
    const layout::Examined examined = layout::examine(buffers);
    if (examined.trouble) continue;
    layout::Options options;
    options.capacity = examined.load.bytes + examined.load.bytes / good_enough_part;
    options.deadline = input.patience;
    options.threads = 1;
    const layout::Layout found = layout::solve(buffers, options);
    places.heights.push_back({stream, whole(found.height, input.granule_bytes)});
    for (size_t i = 0; i < stays.size(); ++i)
      places.places.push_back({stays[i]->identity, stream, found.offsets[i], stays[i]->bytes});
  }
  return places;
}

struct Lacking {
  uint64_t without = 0, with = 0;  // grains beyond the capacity, times events
};

Lacking lacking(const PlacesInput& input, std::span<const Life> lives, const Places& places) {
  Curve placed(input.period);
  for (const Life& life : lives) placed.add(*life.stay, life.stay->grains);
  const uint64_t height = whole(places.height_bytes(), input.grain_bytes) / input.grain_bytes;
  Lacking lacking;
  uint64_t total = 0;
  size_t next = 0;
  const auto beyond = [&](uint64_t grains) {
    return grains - std::min(grains, input.capacity);
  };
  placed.walk([&](uint64_t ahead, uint64_t grains) {
    while (next < input.loads.size() && input.loads[next].ahead <= ahead)
      total = input.loads[next++].grains;
    lacking.without += beyond(total);
    lacking.with += beyond(total - std::min(total, grains) + height);
  });
  return lacking;
}

}  // namespace

Places plan_places(const PlacesInput& input) {
  if (input.period == 0) return {};
  std::vector<Life> all = lives_between_cuts(input);
  if (all.size() >= places_least) {
    Places places = lay_out(input, all);
    if (lacking(input, all, places).with == 0) return places;
  }
  std::erase_if(all, [](const Life& life) { return life.stay->left; });
  size_t tried = 0;
  for (const uint64_t part : parts_tried) {
    std::vector<Life> lives;
    for (const Life& life : all)
      if (life.end - life.begin <= input.period / part) lives.push_back(life);
    if (lives.size() < places_least) break;
    if (lives.size() == tried) continue;
    tried = lives.size();
    Places places = lay_out(input, lives);
    const Lacking lack = lacking(input, lives, places);
    if (lack.with <= lack.without) return places;
  }
  return {};
}

}  // namespace firn::lifetimes
