// When places are planned and given up, of a script whose activations may have places.
#include "allocator/policy/place_planner.h"

#include <algorithm>
#include <chrono>

#include "tests/allocator/policy/policy_fixture.h"

using namespace firn;
using namespace firn::test;

namespace {

using Then = PlacePlanner::Then;
constexpr unsigned weights = 6;

class PlacePlannerTest : public PolicyTest {
 protected:
  PlacePlannerTest() {
    play(begin(weights));
    play(script_, 6);
    EXPECT_TRUE(history().known());
    EXPECT_EQ(history().period(), period_);
  }
  /// One more event, in which a frame was mapped; and a place handed out, where they are.
  Then event(uint64_t maps = 1) {
    const Act& next = script_[at_++ % script_.size()];
    act(next);
    figures_.maps += maps;
    if (figures_.active && next.what == Act::What::allocate) figures_.placed += placing_;
    return planner_.consider(learner_, figures_);
  }
  /// The events until there is something to do, but so many rounds at most; 0: nothing was.
  uint64_t until(Then then, uint64_t rounds, uint64_t maps = 1) {
    for (uint64_t i = 1; i <= rounds * period_; ++i)
      if (const Then now = event(maps); now != Then::nothing) {
        EXPECT_EQ(now, then);
        return i;
      }
    return 0;
  }
  lifetimes::PlacesInput stock() {
    planner_.take(learner_, 1'000, 200);
    auto stock = planner_.due();
    EXPECT_TRUE(stock);
    return stock ? *stock : lifetimes::PlacesInput{};
  }
  /// A plan was made, and its places are handed out.
  void adopt() {
    (void)stock();
    ASSERT_TRUE(planner_.end(learner_, period_));
    lifetimes::Places planned;
    planned.asked_bytes = 100;
    planned.rounded_bytes = 130;
    planned.occupied_bytes = 110;
    figures_.active = true;
    figures_.places = weights;
    planner_.adopted(learner_, planned, period_, figures_);
  }
  /// So many rounds in which all goes on as it is, and no frame is mapped.
  void rounds(uint64_t count) { EXPECT_EQ(until(Then::give_up, count, 0), 0u); }
  /// From an adopted plan on: it fails as soon as misses count.
  void fail() {
    rounds(4);
    planner_.note_missed();
    planner_.note_missed();
    EXPECT_EQ(event(0), Then::give_up);
    figures_.active = false;
  }

  /// Of an activation.
  uint64_t pages_of(unsigned variable) const {
    for (const Act& act : script_)
      if (act.variable == variable && act.what == Act::What::allocate)
        return uint64_t{act.granules} * granule_pages;
    return 0;
  }

  const Script script_ = training(weights);
  const uint64_t period_ = script_.size();
  size_t at_ = 0;
  bool placing_ = true;
  PlacePlanner::Figures figures_;
  PlacePlanner planner_{true, false};
};

TEST_F(PlacePlannerTest, a_period_is_planned_for_after_steady_rounds) {
  EXPECT_EQ(event(), Then::nothing);  // the period is seen for the first time
  EXPECT_EQ(until(Then::plan, 3), 2 * period_);
  EXPECT_EQ(planner_.maps_without_places(), period_);
  (void)stock();
  EXPECT_EQ(planner_.due(), std::nullopt);
  EXPECT_EQ(until(Then::plan, 4), 0u) << "while a plan is being made";
  EXPECT_TRUE(planner_.end(learner_, period_));
  EXPECT_GT(until(Then::plan, 1), 0u);
}

TEST_F(PlacePlannerTest, the_rounds_count_from_the_last_change_of_the_period) {
  (void)event();
  for (uint64_t i = 0; i < period_ + period_ / 2; ++i) EXPECT_EQ(event(), Then::nothing);
  const Script other = training(11, 20);
  play(begin(11, 20));
  uint64_t steady = 0;
  for (size_t at = 0; at < 20 * other.size(); ++at) {
    act(other[at % other.size()]);
    ++figures_.maps;
    const bool known = history().known() && history().period() == other.size();
    steady = known ? steady + 1 : 0;
    if (planner_.consider(learner_, figures_) == Then::plan) break;
  }
  EXPECT_GE(steady, 2 * other.size());
  EXPECT_LE(steady, 3 * other.size() + 1);
}

TEST_F(PlacePlannerTest, nothing_is_planned_where_nothing_is_mapped_or_places_are_off) {
  EXPECT_EQ(until(Then::plan, 10, 0), 0u);
  EXPECT_GT(until(Then::plan, 2), 0u);
  PlacePlanner off{false, false};
  for (uint64_t i = 0; i < 5 * period_; ++i) {
    (void)event();
    EXPECT_EQ(off.consider(learner_, figures_), Then::nothing);
  }
}

TEST_F(PlacePlannerTest, what_is_allocated_and_freed_within_the_period_may_have_a_place) {
  for (uint64_t at = 0; at < period_; ++at, (void)event()) {
    const lifetimes::PlacesInput input = stock();
    EXPECT_EQ(input.period, period_);
    EXPECT_EQ(input.capacity, 1'000u);
    uint64_t pages = 200;
    std::vector<std::pair<uint64_t, uint64_t>> loads{{0, pages}};
    std::map<unsigned, uint64_t> births, deaths;
    for (uint64_t ahead = 1; ahead <= period_; ++ahead) {
      const Act& act = script_[(at + ahead - 1) % period_];
      const uint64_t size = pages_of(act.variable);
      if (act.what == Act::What::allocate) births[act.variable] = ahead, pages += size;
      if (act.what == Act::What::free)
        deaths[act.variable] = ahead, pages -= std::min(pages, size);
      if (act.what == Act::What::allocate || act.what == Act::What::free)
        loads.emplace_back(ahead, pages);
    }
    ASSERT_EQ(input.loads.size(), loads.size());
    for (size_t i = 0; i < loads.size(); ++i)
      EXPECT_EQ(std::pair(input.loads[i].ahead, input.loads[i].pages), loads[i]);
    ASSERT_EQ(input.stays.size(), weights);
    for (const lifetimes::Stay& stay : input.stays) {
      const auto of = std::find_if(births.begin(), births.end(),
                                   [&](const auto& birth) { return birth.second == stay.birth; });
      ASSERT_NE(of, births.end());
      EXPECT_EQ(stay.death, deaths.at(of->first));
      EXPECT_EQ(stay.pages, pages_of(of->first));
      EXPECT_EQ(stay.bytes, stay.pages * page_bytes);  // as was asked for
      EXPECT_FALSE(stay.left);
    }
  }
}

TEST_F(PlacePlannerTest, what_is_not_freed_until_the_period_after_has_no_place) {
  Script leaks = training(11, 20);
  leaks.insert(leaks.begin() + 30, {Act::What::allocate, 50, 9});  // anew in each iteration
  play(begin(11, 20));
  play(leaks, 8);
  ASSERT_TRUE(history().known());
  ASSERT_EQ(history().period(), leaks.size());
  for (const Act& each : leaks) {
    EXPECT_EQ(stock().stays.size(), 11u);
    act(each);
  }
}

TEST_F(PlacePlannerTest, a_plan_is_bound_by_time_or_by_steps) {
  const lifetimes::PlacesInput timed = stock();
  EXPECT_EQ(timed.steps, UINT64_MAX);
  EXPECT_EQ(timed.patience, std::chrono::milliseconds(50));
  PlacePlanner stepped{true, true};
  stepped.take(learner_, 1'000, 200);
  const auto input = stepped.due();
  ASSERT_TRUE(input);
  EXPECT_EQ(input->steps, 200u);
  EXPECT_EQ(input->patience, std::chrono::hours(1));
}

TEST_F(PlacePlannerTest, what_left_the_device_lately_gets_no_place) {
  const auto left = [this] {
    unsigned count = 0;
    for (const lifetimes::Stay& stay : stock().stays) count += stay.left;
    return count;
  };
  while (!of_[103]) (void)event();
  const Identity who = identity(*of_[103]);
  planner_.note_leaving(learner_, *of_[103]);
  planner_.note_leaving(learner_, *table_.make());  // it has no life
  for (uint64_t i = 0; i < 2 * period_; ++i) {
    for (const lifetimes::Stay& stay : stock().stays) EXPECT_EQ(stay.left, stay.identity == who);
    (void)event();
  }
  EXPECT_EQ(left(), 0u);
}

TEST_F(PlacePlannerTest, misses_give_the_plan_up_and_the_wait_doubles) {
  for (const uint64_t wait : {2, 4, 8}) {
    adopt();
    fail();
    const uint64_t waited = until(Then::plan, 20);
    EXPECT_GE(waited, wait * period_);
    EXPECT_LE(waited, (wait + 1) * period_);
  }
  EXPECT_EQ(planner_.missed(), 6u);
}

TEST_F(PlacePlannerTest, the_wait_is_short_again_after_rounds_that_went_well) {
  (void)until(Then::plan, 4);
  for (int i = 0; i < 3; ++i) {
    adopt();
    fail();
    EXPECT_GT(until(Then::plan, 20), 0u);
  }
  adopt();
  rounds(9);  // four to fill the regions, four to see, and what is left of one
  fail();
  EXPECT_LE(until(Then::plan, 20), 3 * period_);
}

TEST_F(PlacePlannerTest, misses_count_only_once_the_regions_are_filled) {
  adopt();
  for (int round = 0; round < 3; ++round) {
    for (unsigned i = 0; i < weights; ++i) planner_.note_missed();
    rounds(1);
  }
  rounds(1);
  EXPECT_EQ(planner_.maps_with_places(), 0u);
  planner_.note_missed();
  rounds(1);  // one of six may miss
}

TEST_F(PlacePlannerTest, places_that_nobody_takes_are_given_up) {
  adopt();
  placing_ = false;
  EXPECT_EQ(until(Then::give_up, 2), period_);
}

TEST_F(PlacePlannerTest, places_that_save_no_maps_are_given_up) {
  (void)event();
  ASSERT_GT(until(Then::plan, 4), 0u);
  adopt();
  const uint64_t lived = until(Then::give_up, 20);
  EXPECT_GE(lived, 7 * period_);
  EXPECT_LE(lived, 9 * period_);
  EXPECT_EQ(planner_.maps_with_places(), planner_.maps_without_places());
}

TEST_F(PlacePlannerTest, a_plan_for_another_period_is_dropped) {
  (void)stock();
  EXPECT_FALSE(planner_.end(learner_, 2 * period_));
  EXPECT_TRUE(planner_.end(learner_, period_ + period_ / 32));
  adopt();
  EXPECT_EQ(planner_.waste_without_places(), 30u);
  EXPECT_EQ(planner_.waste_with_places(), 10u);
}

}  // namespace
