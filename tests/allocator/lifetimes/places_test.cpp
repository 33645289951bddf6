// Planned places: valid for every iteration, cut where it is cheap, and only where there is room.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "allocator/lifetimes/places.h"

using namespace firn::lifetimes;

namespace {

PlacesInput of(uint64_t period, uint64_t capacity, std::vector<Stay> stays, uint64_t others = 0) {
  PlacesInput input;
  input.page_bytes = input.granule_bytes = 1;
  input.period = period;
  input.capacity = capacity;
  input.stays = std::move(stays);
  std::vector<uint64_t> sums(period + 1, others);
  for (const Stay& stay : input.stays)
    for (uint64_t t = 0; t <= period; ++t)
      if (stay.birth < stay.death ? t >= stay.birth && t < stay.death
                                  : t >= stay.birth || t < stay.death)
        sums[t] += stay.pages;
  for (uint64_t t = 0; t <= period; ++t) input.loads.push_back({t, sums[t]});
  return input;
}

bool alive_together(const Stay& a, const Stay& b, uint64_t period) {
  const auto alive = [&](const Stay& stay, uint64_t t) {
    return stay.birth < stay.death ? t >= stay.birth && t < stay.death
                                   : t >= stay.birth || t < stay.death;
  };
  for (uint64_t t = 1; t <= period; ++t)
    if (alive(a, t) && alive(b, t)) return true;
  return false;
}

TEST(Places, blocks_that_follow_each_other_share_bytes) {
  const Places places = plan_places(of(8, 100, {{1, 0, 1, 3, 10, 12}, {2, 0, 3, 5, 8, 12},
                                                {3, 0, 2, 4, 5, 6}}));
  ASSERT_EQ(places.places.size(), 3u);
  EXPECT_EQ(places.height_bytes(), 15u);
  EXPECT_EQ(places.asked_bytes, 15u);
  EXPECT_EQ(places.rounded_bytes, 18u);
}

TEST(Places, what_lives_across_the_cheapest_moment_has_its_place_for_itself) {
  // 3 lives across that moment, and never together with 1, nor with 2 but for one event.
  const std::vector<Stay> stays{{1, 0, 3, 4, 10, 10}, {2, 0, 4, 5, 10, 10}, {3, 0, 7, 2, 1, 1}};
  const Places places = plan_places(of(8, 100, stays));
  ASSERT_EQ(places.places.size(), 3u);
  EXPECT_EQ(places.height_bytes(), 10u);
  const Places crowded = plan_places(of(8, 100, {{1, 0, 1, 8, 10, 10}, {2, 0, 4, 5, 10, 10},
                                                 {3, 0, 7, 2, 1, 1}}));
  ASSERT_EQ(crowded.places.size(), 3u);
  EXPECT_EQ(crowded.height_bytes(), 21u);
}

TEST(Places, each_stream_has_its_own) {
  const Places places = plan_places(of(8, 100, {{1, 4, 1, 3, 10, 10}, {2, 9, 3, 5, 10, 10},
                                                {3, 4, 4, 5, 10, 10}, {4, 9, 6, 7, 10, 10}}));
  ASSERT_EQ(places.heights.size(), 2u);
  EXPECT_EQ(places.height_bytes(), 20u);
}

TEST(Places, what_left_the_device_has_one_only_where_everything_fits_then) {
  std::vector<Stay> stays{{1, 0, 1, 9, 10, 12, true}, {2, 0, 2, 3, 4, 4}, {3, 0, 4, 5, 4, 4}};
  EXPECT_EQ(plan_places(of(64, 50, stays, 36)).places.size(), 3u);
  const Places places = plan_places(of(64, 49, stays, 36));
  for (const Places::Place& place : places.places) EXPECT_NE(place.identity, 1u);
}

TEST(Places, there_are_none_where_others_need_much_of_the_region) {
  // What has places is small at the moment at which the others are many.
  const std::vector<Stay> stays{{1, 0, 1, 3, 100, 100}, {2, 0, 3, 5, 100, 100}};
  PlacesInput input = of(8, 1000, stays, 700);
  EXPECT_EQ(plan_places(input).places.size(), 2u);
  input.loads[6].pages = 920;  // 20 beyond, of which one in 32 may be
  EXPECT_EQ(plan_places(input).places.size(), 2u);
  input.loads[6].pages = 940;
  EXPECT_TRUE(plan_places(input).places.empty());
}

TEST(Places, any_plan_is_valid_and_hardly_dearer) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed);
    const uint64_t period = 40 + random() % 100;
    std::vector<uint64_t> moments(period);
    for (uint64_t i = 0; i < period; ++i) moments[i] = i + 1;
    std::shuffle(moments.begin(), moments.end(), random);
    std::vector<Stay> stays;
    for (uint64_t i = 0; i + 1 < period; i += 2) {
      const uint64_t bytes = 1 + random() % 1000;
      stays.push_back({static_cast<Identity>(i + 1), static_cast<uint32_t>(random() % 2),
                       moments[i], moments[i + 1], bytes, (bytes + 63) / 64 * 64,
                       random() % 4 == 0});
    }
    PlacesInput input = of(period, 0, stays, 3000);
    uint64_t peak = 0;
    for (const auto& load : input.loads) peak = std::max(peak, load.pages);
    input.capacity = peak * (80 + random() % 40) / 100;
    input.patience = std::chrono::milliseconds(1);
    input.granule_bytes = seed % 2 ? 1 : 256;
    const Places places = plan_places(input);
    uint64_t lacking = 0, lacking_placed = 0;
    for (uint64_t t = 0; t <= period; ++t) {
      uint64_t load = input.loads[t].pages;
      lacking += load - std::min(load, input.capacity);
      std::set<std::pair<uint32_t, uint64_t>> granules;
      for (const Places::Place& place : places.places) {
        const Stay& stay = stays[(place.identity - 1) / 2];
        if (stay.birth < stay.death ? t >= stay.birth && t < stay.death
                                    : t >= stay.birth || t < stay.death) {
          load -= stay.pages;
          for (uint64_t byte = place.offset; byte < place.offset + place.bytes; ++byte)
            granules.emplace(place.stream, byte / input.granule_bytes);
        }
      }
      load += granules.size() * input.granule_bytes;
      lacking_placed += load - std::min(load, input.capacity);
    }
    EXPECT_LE(lacking_placed,
              lacking + places.heights.size() * input.granule_bytes * input.period)
        << "seed " << seed;
    for (const Places::Place& a : places.places)
      for (const Places::Place& b : places.places) {
        if (a.identity >= b.identity || a.stream != b.stream) continue;
        if (a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset) continue;
        EXPECT_FALSE(alive_together(stays[(a.identity - 1) / 2], stays[(b.identity - 1) / 2],
                                    period))
            << "seed " << seed << ": " << a.identity << " and " << b.identity;
      }
  }
}

}  // namespace
