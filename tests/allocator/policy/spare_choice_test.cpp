// How much is written ahead: when it is chosen, what for, and when a trial of more is kept.
#include "allocator/policy/spare_choice.h"

#include <algorithm>

#include "tests/allocator/policy/policy_fixture.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr unsigned weights = 6;
constexpr double most = .125, most_tried = .5;
constexpr uint64_t event_ns = 100, late_ns = 120;

lifetimes::RehearsalMachine machine() {
  lifetimes::RehearsalMachine machine;
  machine.capacity = 400;
  machine.host = 100'000;
  machine.page_bytes = page_bytes;
  for (double& bytes_s : machine.bytes_s) bytes_s = 1e9;
  return machine;
}

class SpareChoiceTest : public PolicyTest {
 protected:
  SpareChoiceTest() {
    play(begin(weights));
    play(script_, 6);
    EXPECT_TRUE(history().known());
    EXPECT_EQ(history().period(), period_);
  }
  /// One more event, which takes so long.
  bool event(uint64_t ns = event_ns, bool plan_short = true) {
    act(script_[at_++ % script_.size()]);
    now_ns_ += ns;
    if (timed_) history().stamp(history().now(), now_ns_);
    return choice_.consider(learner_, plan_short, now_ns_);
  }
  void periods(uint64_t count, uint64_t ns = event_ns) {
    for (uint64_t i = 0; i < count * period_; ++i) EXPECT_FALSE(event(ns));
  }
  uint64_t until_stock(uint64_t periods_most) {
    for (uint64_t i = 1; i <= periods_most * period_; ++i)
      if (event()) return i;
    return 0;
  }
  void take() {
    outlook_.clear();
    for (const auto& [variable, block] : of_)
      if (block) outlook_.add(learner_, *block, {.size = block->pages}, true);
    outlook_.look_ahead(learner_, [](const History::Upcoming& coming) {
      return coming.bytes / page_bytes;
    });
    choice_.take(outlook_, history(), machine(),
                 std::vector<uint64_t>(outlook_.items().size(), 1));
  }
  /// Chooses that, of which a rehearsed period takes so long an event.
  void choose(double spare, double ns) {
    ASSERT_GT(until_stock(2), 0u);
    take();
    choice_.end(learner_, true);
    ASSERT_TRUE(choice_.due());
    choice_.choose({spare, ns * static_cast<double>(period_)});
    EXPECT_EQ(choice_.fraction(), spare);
  }

  const Script script_ = training(weights);
  const uint64_t period_ = script_.size();
  size_t at_ = 0;
  uint64_t now_ns_ = 1'000;
  bool timed_ = true;
  Outlook outlook_;
  SpareChoice choice_{most};
};

TEST_F(SpareChoiceTest, nothing_is_chosen_without_a_shortage) {
  for (uint64_t i = 0; i < 4 * period_; ++i) EXPECT_FALSE(event(event_ns, false));
  EXPECT_FALSE(learner_.timing());
  EXPECT_EQ(choice_.fraction(), most);
  EXPECT_FALSE(choice_.due());
}

TEST_F(SpareChoiceTest, nothing_is_chosen_where_nothing_is_written_ahead) {
  SpareChoice none{0};
  for (uint64_t i = 0; i < 4 * period_; ++i) {
    act(script_[i % script_.size()]);
    history().stamp(history().now(), now_ns_ += event_ns);
    EXPECT_FALSE(none.consider(learner_, true, now_ns_));
  }
  EXPECT_FALSE(learner_.timing());
  EXPECT_EQ(none.fraction(), 0);
}

TEST_F(SpareChoiceTest, times_are_asked_for_then_stock_then_a_choice) {
  EXPECT_FALSE(event());
  EXPECT_TRUE(learner_.timing());
  EXPECT_EQ(until_stock(2), period_ + period_ / 8);
  EXPECT_EQ(choice_.period_ns(), period_ * event_ns);
  take();
  EXPECT_FALSE(choice_.due()) << "before end()";
  choice_.end(learner_, true);
  EXPECT_FALSE(learner_.timing());
  periods(2);  // while it is rehearsed
  auto stock = choice_.due();
  ASSERT_TRUE(stock);
  EXPECT_FALSE(choice_.due());
  ASSERT_EQ(stock->steps.size(), period_);
  EXPECT_EQ(stock->items.size(), stock->in_store.size());
  uint64_t all_ns = stock->rehearsal.after_ns;
  for (const uint64_t ns : stock->before_ns) all_ns += ns;
  EXPECT_EQ(all_ns, period_ * event_ns);
  EXPECT_EQ(stock->before_ns.at(3), event_ns);
  const SpareChoice::Best best = choice_.best_of(*stock);
  EXPECT_GT(best.ns, 0);
  choice_.choose(best);
  EXPECT_EQ(choice_.fraction(), best.spare);
}

TEST_F(SpareChoiceTest, the_choice_holds_until_the_period_changes_or_long_after) {
  choose(.1, event_ns);
  periods(200);
  EXPECT_FALSE(learner_.timing());
  for (uint64_t i = 0; i < 100 * period_ && !learner_.timing(); ++i) (void)event();
  EXPECT_TRUE(learner_.timing());
}

TEST_F(SpareChoiceTest, times_that_do_not_come_are_given_up) {
  timed_ = false;
  EXPECT_FALSE(event());
  periods(7);
  EXPECT_TRUE(learner_.timing());
  periods(2);
  EXPECT_FALSE(learner_.timing());
  periods(20);
  EXPECT_FALSE(learner_.timing());
}

TEST_F(SpareChoiceTest, stock_that_cannot_be_taken_is_asked_for_again_for_a_while) {
  ASSERT_GT(until_stock(2), 0u);
  choice_.end(learner_, false);
  EXPECT_TRUE(learner_.timing());
  uint64_t asked = 0;
  for (uint64_t i = 0; i < 10 * period_; ++i)
    if (event()) {
      ++asked;
      choice_.end(learner_, false);
    }
  EXPECT_GT(asked, 6 * period_);
  EXPECT_LT(asked, 7 * period_);
  EXPECT_FALSE(learner_.timing());
  EXPECT_FALSE(choice_.due());
}

/// A period of blocks that are there, and their uses.
struct Rehearsable {
  explicit Rehearsable(double out_bytes_s) {
    stock.rehearsal.machine = machine();
    stock.rehearsal.machine.bytes_s[0] = out_bytes_s;
    stock.rehearsal.periods = 4;
  }
  void add(uint64_t size, bool writes, uint64_t ns, uint64_t on_device) {
    const auto item = static_cast<uint32_t>(stock.items.size());
    stock.items.push_back({.size = size, .on_device = on_device, .again = item});
    use(item, writes, ns);
  }
  void use(uint32_t item, bool writes, uint64_t ns) {
    stock.steps.push_back({stock.steps.size() + 1,
                           writes ? lifetimes::Step::Kind::write : lifetimes::Step::Kind::read,
                           item});
    stock.before_ns.push_back(ns);
  }
  Stock stock;
};

TEST_F(SpareChoiceTest, a_setting_that_writes_less_must_be_faster) {
  Rehearsable fits(1e9);
  for (int i = 0; i < 4; ++i) fits.add(50, true, 1'000, 50);
  const SpareChoice::Best same = choice_.best_of(fits.stock);
  EXPECT_EQ(same.spare, most);
  EXPECT_GT(same.ns, 0);
  // Where nearly all of the memory is used at once, copies out keep the link from what is needed.
  Rehearsable slow(6.5e10);
  slow.stock.rehearsal.machine.capacity = 100;
  slow.stock.rehearsal.machine.bytes_s[1] = 6.5e10;
  const struct {
    uint32_t item;
    bool writes;
    uint64_t ns;
  } uses[] = {{0, true, 43'000},  {1, false, 14'000}, {2, false, 14'000},
              {2, false, 14'000}, {1, false, 30'000}, {0, true, 16'000}};
  for (const uint64_t size : {10, 40, 60})
    slow.stock.items.push_back({.size = size,
                                .on_device = std::min<uint64_t>(size, 50),
                                .again = static_cast<uint32_t>(slow.stock.items.size())});
  for (const auto& [item, writes, ns] : uses) slow.use(item, writes, ns);
  const SpareChoice::Best less = choice_.best_of(slow.stock);
  EXPECT_LT(less.spare, most);
  slow.stock.rehearsal.tuning.spare_part = 8;  // 1 / most
  const lifetimes::Rehearsed with_most = lifetimes::rehearse(slow.stock.rehearsal);
  EXPECT_LT(less.ns, static_cast<double>(with_most.total_ns - with_most.first_ns) / 3);
}

TEST_F(SpareChoiceTest, nothing_rehearsed_chooses_the_most) {
  Stock empty;
  const SpareChoice::Best best = choice_.best_of(empty);
  EXPECT_EQ(best.spare, most);
  EXPECT_EQ(best.ns, 0);
  Rehearsable too_large(1e9);
  too_large.add(500, true, 1'000, 400);
  EXPECT_EQ(choice_.best_of(too_large.stock).ns, 0);
  ASSERT_GT(until_stock(2), 0u);
  take();
  choice_.end(learner_, true);
  choice_.choose({most, 0});
  periods(8, 2 * event_ns);  // and there is no trial
  EXPECT_EQ(choice_.fraction(), most);
}

TEST_F(SpareChoiceTest, more_is_tried_only_where_periods_take_longer_than_rehearsed) {
  choose(.1, event_ns);
  periods(10);
  EXPECT_EQ(choice_.fraction(), .1);
}

TEST_F(SpareChoiceTest, the_most_that_is_rehearsed_is_kept_if_it_is_faster) {
  choose(.1, event_ns);
  periods(3, late_ns);
  EXPECT_EQ(choice_.fraction(), .1);
  for (uint64_t i = 0; i < 2 * period_ && choice_.fraction() == .1; ++i) (void)event(late_ns);
  ASSERT_EQ(choice_.fraction(), most);
  periods(10, event_ns);
  EXPECT_EQ(choice_.fraction(), most) << "no period is faster than one with all in memory";
}

TEST_F(SpareChoiceTest, more_is_kept_if_it_is_faster) {
  choose(.1, event_ns);
  periods(8, late_ns);
  ASSERT_EQ(choice_.fraction(), most_tried);
  periods(10, event_ns);
  EXPECT_EQ(choice_.fraction(), most_tried);
}

TEST_F(SpareChoiceTest, the_fastest_of_those_tried_is_kept) {
  choose(.1, event_ns);
  periods(5, late_ns);
  ASSERT_EQ(choice_.fraction(), most);
  for (uint64_t i = 0; i < 4 * period_ && choice_.fraction() == most; ++i)
    (void)event(late_ns - 10);
  ASSERT_EQ(choice_.fraction(), most_tried);
  periods(4, late_ns - 5);
  EXPECT_EQ(choice_.fraction(), most);
}

TEST_F(SpareChoiceTest, the_chosen_setting_is_not_tried_again) {
  choose(most, event_ns);
  periods(5, late_ns);
  EXPECT_EQ(choice_.fraction(), most_tried);
}

TEST_F(SpareChoiceTest, more_is_given_up_if_it_is_not_faster) {
  choose(.1, event_ns);
  periods(5, late_ns);
  ASSERT_EQ(choice_.fraction(), most);
  periods(3, late_ns);
  ASSERT_EQ(choice_.fraction(), most_tried);
  periods(5, late_ns);
  EXPECT_EQ(choice_.fraction(), .1);
  periods(10, late_ns);
  EXPECT_EQ(choice_.fraction(), .1) << "it is tried once";
}

TEST_F(SpareChoiceTest, more_is_tried_where_periods_are_nearly_as_fast_as_with_all_in_memory) {
  choose(most, event_ns + 3);
  periods(5, event_ns + 3);  // as was rehearsed
  EXPECT_EQ(choice_.fraction(), most_tried);
}

TEST_F(SpareChoiceTest, nothing_is_tried_where_periods_are_much_slower_as_rehearsed) {
  choose(most, late_ns);
  periods(10, late_ns);
  EXPECT_EQ(choice_.fraction(), most);
}

TEST_F(SpareChoiceTest, a_trial_ends_with_the_shortage) {
  choose(.1, event_ns);
  periods(5, late_ns);
  ASSERT_EQ(choice_.fraction(), most);
  EXPECT_FALSE(event(event_ns, false));
  EXPECT_EQ(choice_.fraction(), .1);
}

TEST_F(SpareChoiceTest, a_changed_period_ends_a_trial) {
  choose(.1, event_ns);
  periods(5, late_ns);
  ASSERT_EQ(choice_.fraction(), most);
  const Script other = training(11, 20);
  play(begin(11, 20));
  for (size_t at = 0; history().period() == period_; ++at) {
    ASSERT_LT(at, 20 * other.size());
    EXPECT_EQ(choice_.fraction(), most);
    act(other[at % other.size()]);
  }
  EXPECT_FALSE(choice_.consider(learner_, true, now_ns_));
  EXPECT_EQ(choice_.fraction(), .1);
}

}  // namespace
